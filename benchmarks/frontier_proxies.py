"""Public data that stand in for each federation of the best recipes while settings are looked for.

None of them has an example, a writer or a role in common with the clients they stand in for, but
some of CIFAR-10's test images are nearly a training image, or its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from fedveil.data.encoder import FARTHEST
from fedveil.data.examples import Examples, Task
from fedveil.data.federation import Federation, Scaling
from fedveil.data.partition import IID, ByOwner, Dirichlet, Partition, SortedSlices
from fedveil.data.sources import find
from fedveil.data.sources.lending_club import principal_components
from fedveil.data.sources.shakespeare import CHARACTERS, LENGTH, encode
from fedveil.data.sources.source import Pool

Rows = npt.NDArray[np.bool_]
Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Proxy:
    """`source` is where its examples come from, `names` how recipes call it, `words` what it is.
    The score of several tasks is their mean. Where it has fewer clients than the federation has,
    `clients`, rounds get as much less noise: what counts is noise in the average of the updates."""

    source: str
    names: tuple[str, ...]
    words: str
    tasks: tuple[Callable[[], Federation], ...]
    clients: int | None = None


def _dealt(pool: Pool, chosen: Rows, partition: Partition) -> Federation:
    """A pool's chosen training examples, a fifth of which measures."""
    by_owner = isinstance(partition, ByOwner)
    return Federation.from_arrays(
        pool.train.inputs[chosen],
        pool.train.targets[chosen],
        pool.owners[chosen] if by_owner and pool.owners is not None else None,
        partition=partition,
        test_fraction=0.2,
        task=Task.CLASSIFICATION,
        scaling=pool.scaling,
        public=True,
        holdout="within" if by_owner else "pooled",
    )


def writer_numbers(pool: Pool) -> npt.NDArray[np.int64]:
    """NIST's number of each example's writer: 3313 is FEMNIST's f3313_11 as well."""
    assert pool.owners is not None
    names, place = np.unique(pool.owners, return_inverse=True)
    numbers = [int(str(name).partition("_")[0].removeprefix("f")) for name in names]
    return np.array(numbers)[place]


def other_writers(pool: Pool, than: Pool) -> Rows:
    """Examples of a pool whose writers have none in the other."""
    return ~np.isin(writer_numbers(pool), writer_numbers(than))


def femnist_digits() -> Federation:
    """FEMNIST's digits, without the writers that MNIST has too, 445 clients of 50."""
    pool, other = find("femnist").pool(), find("mnist-writers").pool()
    chosen = (np.asarray(pool.train.targets, np.int64) < 10) & other_writers(pool, other)
    return _dealt(pool, chosen, IID(445))


def mnist_writers() -> Federation:
    """MNIST by 300 of its writers whom FEMNIST does not have."""
    pool = find("mnist-writers").pool()
    return _dealt(pool, other_writers(pool, find("femnist").pool()), ByOwner(clients=300))


def small_mnist() -> Federation:
    """1,797 of MNIST's digits in 8 x 8 pixels of 17 shades, as scikit-learn's are."""
    pool = find("mnist").pool()
    images = np.asarray(pool.train.inputs[:1797], np.float64)[:, 2:26, 2:26]
    small = np.rint(images.reshape(-1, 8, 3, 8, 3).mean((2, 4)) * 16 / 255).astype(np.uint8)
    scaling = find("digits").pool().scaling
    made = Pool(train=Examples(small, pool.train.targets[:1797]), scaling=scaling)
    return _dealt(made, np.ones(1797, bool), IID(100))


def half_of_the_tests() -> tuple[Examples, Scaling | None]:
    """The first half of CIFAR-10's test images, and how a model sees them."""
    pool = find("cifar10").pool()
    assert pool.test is not None
    return pool.test.take(np.arange(5000)), pool.scaling


def cifar_half(alpha: float = 1.0) -> Federation:
    """The first half of CIFAR-10's test images, 160 clients of 25; a fifth of them measures."""
    half, scaling = half_of_the_tests()
    train, test = np.split(np.random.default_rng(0).permutation(5000), [4000])
    return Federation.from_arrays(
        half.inputs[train],
        half.targets[train],
        partition=Dirichlet(160, alpha),
        test=half.take(test),
        task=Task.CLASSIFICATION,
        classes=10,
        scaling=scaling,
        public=True,
    )


def python_pages() -> Federation:
    """Python's own documentation, 975 clients of a few windows of 80 characters each."""
    codes = encode("\n".join(topics[name] for name in sorted(topics)))
    windows = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    order = np.random.default_rng(0).permutation(len(windows))
    test, train = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
    owners = np.arange(len(train)) * 975 // len(train)  # what one has stands together
    return Federation.from_arrays(
        windows[train, :LENGTH],
        windows[train, 1:].astype(np.int64),
        owners,
        test=(windows[test, :LENGTH], windows[test, 1:].astype(np.int64)),
        task=Task.SEQUENCE,
        classes=len(CHARACTERS),
        class_names=tuple(CHARACTERS),
        public=True,
    )


def digits_on_photos() -> Federation:
    """MNIST's digits, enlarged, on pieces of the first half of CIFAR-10's test images, as Ganin et
    al. (2016) put theirs on others: 5,000 dealt to 2,000 clients, and 1,250 that measure."""
    (photos, scaling), digits = half_of_the_tests(), find("mnist").pool()
    ink = np.asarray(digits.train.inputs[:6250], np.float32)[:, 2:26, 2:26] / 255
    large = interpolate(torch.from_numpy(ink)[:, None], (32, 32), mode="bilinear")
    behind = np.asarray(photos.inputs, np.float32) / 255
    turn = np.random.default_rng(0).integers(5000, size=len(ink))
    both = np.abs(behind[turn] - large.permute(0, 2, 3, 1).numpy())
    images, train = np.rint(255 * both).astype(np.uint8), slice(5000)
    targets = np.asarray(digits.train.targets[:6250])
    return Federation.from_arrays(
        images[train],
        targets[train],
        partition=IID(2000),
        test=(images[5000:], targets[5000:]),
        task=Task.CLASSIFICATION,
        classes=10,
        scaling=scaling,
        public=True,
    )


def _loans(target: Callable[[Column], Column], without: str) -> Federation:
    """Lending Club: a question about each loan, from the columns that do not say it; 16 devices."""
    pool = find("lending-club").pool(components=0, grade=False)
    inputs, names = np.asarray(pool.train.inputs), pool.features
    rate = np.asarray(pool.train.targets, np.float64)
    column = rate if without == "rate" else inputs[:, names.index(without)]
    return Federation.from_arrays(
        inputs[:, [name != without for name in names]],
        target(column).astype(np.int64),
        partition=IID(16),
        test_fraction=0.2,
        holdout="pooled",
        task=Task.CLASSIFICATION,
        classes=2,
        public=True,
    )


def _highest_quarter(column: Column) -> Column:
    return np.asarray(column > np.quantile(column, 0.75), np.float64)


def dear_loans() -> Federation:
    """Is its rate among the highest quarter?"""
    return _loans(_highest_quarter, "rate")


def rich_debtors() -> Federation:
    """Is the debtor's income among the highest quarter?"""
    return _loans(_highest_quarter, "annual_inc")


def long_loans() -> Federation:
    """Is it for 60 months, and not for 36?"""
    return _loans(lambda term: np.asarray(term > 0, np.float64), "term")


def years_at_school() -> Federation:
    """Adult: years at school from ten components of the other columns; 5,000 clients sorted by it,
    as Lending Club's are by their rate."""
    pool, column = find("adult").pool(), "education-num"
    inputs = np.asarray(pool.train.inputs, np.float64)
    years = 10.08 + 2.57 * inputs[:, pool.features.index(column)]
    other = [i for i, name in enumerate(pool.features) if not name.startswith("education")]
    scaled = inputs[:, other] - inputs[:, other].mean(0)
    scaled = np.clip(scaled / np.maximum(scaled.std(0), 1e-6), -FARTHEST, FARTHEST)
    return Federation.from_arrays(
        principal_components(scaled, 10).astype(np.float32),
        years.astype(np.float32),
        partition=SortedSlices(5000),
        test_fraction=0.2,
        holdout="pooled",
        task=Task.REGRESSION,
        public=True,
    )


HALF = "half of CIFAR-10's test images"
PROXIES = {
    "mnist": Proxy(
        "femnist", ("femnist",), "FEMNIST's digits, other writers", (femnist_digits,), 1000
    ),
    "femnist": Proxy("mnist-writers", ("mnist",), "MNIST, 300 other writers", (mnist_writers,)),
    "cifar-even": Proxy("cifar10", (HALF,), HALF, (cifar_half,), 2000),
    "svhn": Proxy(
        "cifar10", ("mnist", HALF), "MNIST's digits on CIFAR-10's photographs", (digits_on_photos,)
    ),
    "shakespeare": Proxy(
        "shakespeare", ("Python's documentation",), "Python's documentation", (python_pages,)
    ),
    "digits": Proxy("mnist", ("mnist",), "MNIST in 8 x 8 pixels", (small_mnist,)),
    "adult": Proxy(
        "lending-club",
        ("lending-club",),
        "Lending Club: dear? rich? long?",
        (dear_loans, rich_debtors, long_loans),
    ),
    "lending-club": Proxy("adult", ("adult",), "Adult: years at school", (years_at_school,)),
    "lending-club-local": Proxy("adult", ("adult",), "Adult: years at school", (years_at_school,)),
}
