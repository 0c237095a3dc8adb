"""A federation: all clients' examples in a few columns, and where each client's part begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import check_fields, one_of, settle
from fedveil.core.display import Displayed
from fedveil.core.errors import ConfigError
from fedveil.data.assignment import Assignment, Owners, group
from fedveil.data.columns import Array
from fedveil.data.declared import CLASSES, SHAPE, TASK, count_classes, dealing, used_again
from fedveil.data.examples import (
    Examples,
    Scaling,
    Task,
    examples_of,
    highest_code,
    task_of,
)
from fedveil.data.holdout import Holdout, deal
from fedveil.data.partition import ByOwner, Partition
from fedveil.data.unusable import marked

if TYPE_CHECKING:
    from fedveil.data.dp_schema import Bought
    from fedveil.data.encoder import TableEncoder

__all__ = [
    "ARTIFICIAL_NOTE",
    "HELD_OUT_NOTE",
    "PICTURES_NOTE",
    "Examples",
    "Federation",
    "Scaling",
    "Task",
]

HELD_OUT_NOTE = (
    "Test or validation examples were held out from the clients' own data; figures measured on "
    "them are not covered by the guarantee."
)
PICTURES_NOTE = (
    "Files of a client stand in the order of their names, which are public and differ, whatever "
    "the class."
)
ARTIFICIAL_NOTE = (
    "Rows were dealt to artificial clients: in the guarantee a client is such a share of the rows, "
    "with the dealing as it is, and not a person."
)


class Persons(NamedTuple):
    """Where the persons of clients stand among the training examples.

    Attributes:
        starts: A client's person `j` has the examples `starts[j]:starts[j + 1]`. A person at
            several clients is there once for each.
        offsets: Client `i` has the persons `offsets[i]:offsets[i + 1]`.
    """

    starts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Persons of each client, `[clients]`."""
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False, repr=False)
class Federation(Displayed):
    """Clients' training examples, sorted by client, plus public test (and validation) examples.

    Client `i` owns rows `offsets[i]:offsets[i + 1]` of `train`. There is no object per client, so
    a million clients cost eight megabytes beyond their data. Columns may be memory-mapped.
    """

    train: Examples
    offsets: npt.NDArray[np.int64]
    test: Examples
    task: Task
    classes: int  # 0 for regression; of several labels, how many
    name: str = "arrays"
    validation: Examples | None = None
    scaling: Scaling | None = None
    notes: tuple[str, ...] = ()  # what the user must know, one sentence each
    # What enters the model or its size and was taken from private rows without noise.
    unprotected: tuple[str, ...] = ()
    owners: Array | None = None  # [clients], where the data name them
    class_names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  # names of flat inputs' columns
    target_scaling: Scaling | None = None  # how regression targets were
    featurizer: Callable[[Array], Array] | None = None  # made the inputs of stored examples
    encoder: TableEncoder | None = None  # how rows of a table became examples
    bought: Bought | None = None  # noisy statistics that made it; part of every guarantee
    # Why each column of a table that is no input is none.
    left_out: Mapping[str, str] = field(default_factory=dict)
    verified: bool = False  # unusable examples were marked before
    public: bool = False  # somebody declared that its rows are known to everybody
    # Most usable examples of a person, at all clients together: declared, and enforced by a cap.
    records_per_person: int | None = None
    # Epsilons that persons bring, by number, or clients if nobody has said who the persons are;
    # infinity where one brings none. Public.
    own_epsilons: npt.NDArray[np.float64] | None = None
    elsewhere: bool = False  # the training rows are on their owners' machines, and none is here

    def __post_init__(self) -> None:
        check_fields(self, task=one_of(Task))
        if self.offsets.flags.writeable:  # who owns which rows is counted on, and must not move
            offsets = self.offsets.copy()
            offsets.setflags(write=False)
            settle(self, offsets=offsets)
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        given = {part: examples for part, examples in parts.items() if examples is not None}
        if wrong := self._wrong(given):
            raise ConfigError(f"federation {self.name!r}{wrong}")
        if not self.verified:
            self._mark_unusable(given)
        if self.records_per_person is not None:
            self._check_cap(self.records_per_person)

    def _wrong(self, parts: dict[str, Examples]) -> str:
        """Return what does not fit together, or nothing."""
        if self.clients < 1 or not len(self.train):
            return " is empty: it needs clients with examples"
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.train):
            return f": offsets must run from 0 to {len(self.train)}"
        if self.sizes.min() < 1:
            return f": client {int(self.sizes.argmin())} has no examples; give it some"
        scaling = self.scaling if isinstance(self.scaling, Scaling) else None
        for one in () if scaling is None else (scaling.shift, scaling.factor):
            # One as long as a batch would treat records by their place.
            own, whole = np.shape(one), self.input_shape
            pairs = zip(reversed(own), reversed(whole), strict=False)
            if len(own) > len(whole) or any(n not in (1, length) for n, length in pairs):
                return f": a scaling of shape {own} does not fit inputs of shape {whole}"
        brought, persons = self.own_epsilons, self.train.persons
        if brought is not None and persons is None and len(brought) != self.clients:
            return f": {len(brought)} epsilons for {self.clients} clients; give one for each"
        for part, examples in parts.items():
            where, count = f", {part} part: ", len(examples.inputs)
            shape, persons = examples.targets.shape, examples.persons
            if count != len(examples.targets):
                return f"{where}{count} inputs but {len(examples.targets)} targets"
            if persons is not None and len(persons) != count:
                return f"{where}{count} inputs but {len(persons)} persons"
            if examples.inputs.shape[1:] != self.input_shape:
                return f"{where}inputs of shape {examples.inputs.shape[1:]}, not {self.input_shape}"
            if self.task is Task.REGRESSION and len(shape) != 1:
                return (
                    f"{where}targets must be one number for each example, got shape {shape}; of "
                    "several labels say task='multi-label'"
                )
            if self.task is Task.MULTI_LABEL and shape[1:] != (self.classes,):
                return f"{where}targets must be 0 or 1 for each of {self.classes} labels"
        return ""

    def _mark_unusable(self, parts: dict[str, Examples]) -> None:
        """Mark unusable examples. A part with such examples is copied, so whether parts share
        memory is found out before."""
        again = used_again(*(examples.inputs for examples in parts.values()))
        found = {part: marked(own, self.task, self.codes) for part, own in parts.items()}
        settle(self, **found)
        if again and any(found[part] is not own for part, own in parts.items()):
            settle(self, unprotected=tuple(dict.fromkeys((*self.unprotected, *again))))

    def _check_cap(self, most: int) -> None:
        """Whoever makes a federation of columns may have forgotten to draw the rows that count."""
        persons, usable = self.train.persons, self.train.usable
        if persons is not None and usable is not None:
            persons = persons[usable]
        if persons is None or np.unique(persons, return_counts=True)[1].max(initial=0) > most:
            raise ConfigError(
                f"federation {self.name!r}: records_per_person={most}, but more examples of a "
                "person count, or nobody has said whose they are. Make the federation by "
                "from_arrays(persons=..., records_per_person=...), which draws them."
            )

    def _display(self) -> tuple[str, dict[str, object]]:
        """Sizes and shapes; never the data themselves, for a repr ends up in logs."""
        return self.name, {
            "task": str(self.task),
            "clients": self.clients,
            "training examples": len(self.train),
            "persons": None if self.train.persons is None else len(np.unique(self.train.persons)),
            "test examples": len(self.test),
            "input shape": list(self.input_shape),
            "classes": self.classes or None,
        }

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def codes(self) -> int:
        """Values that a target may have: a class, or of each label two; 0 for regression."""
        return 2 if self.task is Task.MULTI_LABEL else self.classes

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Examples of each client, `[clients]`."""
        return np.diff(self.offsets)

    @cached_property
    def persons(self) -> Persons:
        """Where the training examples of each client's persons stand.

        Raises:
            ConfigError: Nobody has said who the persons are, or a client's examples of a person do
                not stand together (`from_arrays` puts them together).
        """
        number = self.train.persons
        if number is None:
            raise ConfigError(
                f"federation {self.name!r}: nobody has said which person each example is of. Give "
                "persons= to from_arrays, or data.person_column (--person-column)."
            )
        begins = np.empty(len(number), dtype=np.bool_)
        begins[1:] = number[1:] != number[:-1]
        begins[self.offsets[:-1]] = True
        starts = np.append(np.flatnonzero(begins), len(number))
        offsets = np.searchsorted(starts, self.offsets)
        client = np.repeat(np.arange(self.clients), np.diff(offsets))
        pairs = np.stack([client, number[starts[:-1]]], axis=1)
        if len(np.unique(pairs, axis=0)) < len(pairs):
            raise ConfigError(
                f"federation {self.name!r}: a client's examples of one person must stand together. "
                "Make the federation by from_arrays(persons=...), which puts them together."
            )
        return Persons(starts, offsets)

    def at_sites(self, most: int) -> Federation:
        """Mark examples as unusable that persons have beyond their first `most` clients.

        Which clients these are depends on the person and the order of the clients' names alone.
        """
        spans, number = self.persons, self.train.persons
        if number is None or self.clients <= most:
            return self
        owner = number[spans.starts[:-1]]  # in the order of clients
        order = np.argsort(owner, kind="stable")
        firsts = np.searchsorted(owner[order], owner[order])
        beyond = np.zeros(len(owner), dtype=np.bool_)
        beyond[order] = np.arange(len(owner)) - firsts >= most
        if not beyond.any():
            return self
        usable = ~np.repeat(beyond, np.diff(spans.starts))
        if self.train.usable is not None:
            usable &= self.train.usable
        return replace(self, train=replace(self.train, usable=usable), verified=True)

    @property
    def unusable(self) -> int:
        """How many examples contribute nothing (`data.unusable`). It was counted without noise: it
        is for the owner of the data, and for nobody else."""
        parts = (part.usable for part in (self.train, self.test, self.validation) if part)
        return sum(int((~usable).sum()) for usable in parts if usable is not None)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.inputs.shape[1:])

    def model_inputs(self, inputs: Array) -> Array:
        """Return a model's inputs: float32, scaled if a scaling is set; token ids as int64."""
        if self.scaling is not None:
            return self.scaling(inputs)
        kind = np.int64 if self.task is Task.SEQUENCE else np.float32
        return inputs.astype(kind, copy=False)

    def save(self, directory: Path | str) -> Path:
        """Write every column as one `.npy` file; `Federation.open` maps them into memory."""
        from fedveil.data.storage import save

        if self.own_epsilons is not None:  # forgotten, everybody would pay the run's
            raise ConfigError(
                f"federation {self.name!r}: epsilons of single units are not saved. Make it anew "
                "from the table, or leave them out."
            )
        return save(self, Path(directory))

    @classmethod
    def open(cls, directory: Path | str) -> Federation:
        """A saved federation with its columns on disk: data larger than memory are fine."""
        from fedveil.data.storage import load

        return load(Path(directory))

    @classmethod
    def from_arrays(
        cls,
        inputs: npt.ArrayLike,
        targets: npt.ArrayLike,
        owners: npt.ArrayLike | Owners | None = None,
        *,
        persons: npt.ArrayLike | Owners | None = None,
        records_per_person: int | None = None,
        epsilons: npt.ArrayLike | None = None,
        partition: Partition | None = None,
        test: Examples | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        validation: Examples | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        test_fraction: float | None = None,
        validation_fraction: float = 0.0,
        holdout: Holdout | str = Holdout.WITHIN,
        task: Task | str | None = None,
        classes: int | None = None,
        class_names: tuple[str, ...] = (),
        features: tuple[str, ...] = (),
        scaling: Scaling | None = None,
        name: str = "arrays",
        notes: tuple[str, ...] = (),
        public: bool = False,
        seed: int = 0,
    ) -> Federation:
        """Deal examples `[examples, ...]` to clients: by the owner column, or by a partition.

        Clients stand in sorted order of their owners, each with its examples in the given order.
        Without a test part, `test_fraction` (default 0.2) is held out as `holdout` says, and no
        client is left empty; `POOLED` with a partition holds out before dealing. Unless `task` is
        given, floating-point targets mean regression, whole ones in several columns several
        labels, and all others classification. `seed` deals and holds out; it is public. Columns
        that need no change are shared, not copied.

        Whatever is given here (`classes`, `class_names`, `scaling`, ...) counts as known to
        everybody, and so does an array's type; what is taken from the rows instead stands in
        `unprotected`, unless the rows themselves are `public`, which then stands in every
        guarantee. An example that does not fit (a number that is not finite, a label that is no
        class) keeps its place and contributes nothing (`Examples.usable`). One without an owner,
        None or NaN, belongs to nobody and is left out.

        `persons` says which person each example is of, at whatever clients. Persons are held out
        with all their examples or with none, and artificial clients are dealt whole persons. An
        example without a person is left out. With `records_per_person`, a public number, at most
        so many examples of a person count, drawn by its own name; the others are unusable.
        `epsilons` `[examples]` says what each person, or each client if there are no persons, wants
        to spend at most (NaN: what the run spends). It is public, not computed from examples, and
        the same in all examples of one of them.

        >>> inputs, labels = [[0.5], [1.5], [2.5], [3.5]], [0, 1, 0, 1]
        >>> owners = ["ann", "ann", "bob", "bob"]
        >>> federation = Federation.from_arrays(inputs, labels, owners, test_fraction=0.5)
        >>> federation.clients, federation.sizes.tolist()
        (2, [1, 1])
        """
        kind = task_of(task, targets)
        given = class_names
        pool, class_names = examples_of(kind, inputs, targets, given, "", classes)
        if not len(pool):
            raise ConfigError(f"federation {name!r} is empty: no examples were given")
        brought: dict[str, tuple[npt.ArrayLike, npt.ArrayLike]] = {
            part: (own.inputs, own.targets) if isinstance(own, Examples) else own
            for part, own in (("test", test), ("validation", validation))
            if own is not None
        }
        parts = {
            part: examples_of(kind, xs, ys, class_names, f"{part} ", classes)[0]
            for part, (xs, ys) in brought.items()
        }
        partition = partition or ByOwner()
        whose = None
        if persons is not None:
            whose = _persons(persons, len(pool))
            pool = _with_persons(pool, whose, records_per_person, seed)
        elif records_per_person is not None:
            raise ConfigError(
                f"records_per_person={records_per_person}: nobody has said which person each "
                "example is of. Give persons= as well."
            )
        one_of(Holdout)("holdout", holdout)
        dealt = deal(
            pool.targets,
            owners,
            partition,
            Holdout(holdout),
            test=0.0 if "test" in parts else 0.2 if test_fraction is None else test_fraction,
            validation=0.0 if "validation" in parts else validation_fraction,
            seed=seed,
            persons=whose,
        )
        parts.setdefault("test", pool.take(dealt.test))
        if dealt.validation.size:
            parts["validation"] = pool.take(dealt.validation)
        unprotected = [*dealing(partition)]
        if task is None and not hasattr(targets, "dtype"):  # an array's type is declared with it
            unprotected.append(TASK)
        if isinstance(inputs, list | tuple):
            unprotected.append(SHAPE)
        unprotected += used_again(inputs, *(own[0] for own in brought.values()))
        seen = 0
        if kind is Task.MULTI_LABEL:
            width = pool.targets.shape[1]
            if classes is None and not hasattr(targets, "dtype"):
                unprotected.append(CLASSES)
            if (classes or len(given) or width) != width:
                raise ConfigError(
                    f"classes={classes or len(given)}, but the targets have {width} columns, each "
                    "a label; give one column of class numbers, or leave classes out"
                )
            classes = width
        elif kind is not Task.REGRESSION:
            seen = 1 + max(highest_code(kind, part) for part in (pool, *parts.values()))
        classes, said = count_classes(kind, targets, seen, classes, given, class_names)
        unprotected += said
        if dealt.from_clients or (not public and dealt.test.size + dealt.validation.size):
            notes = (*notes, HELD_OUT_NOTE)
        if not (public or isinstance(partition, ByOwner)):
            notes = (*notes, ARTIFICIAL_NOTE)
        return cls(
            train=pool.take(dealt.train.rows),
            offsets=dealt.train.offsets,
            test=parts["test"],
            task=kind,
            classes=classes,
            name=name,
            validation=parts.get("validation"),
            scaling=scaling,
            notes=notes,
            unprotected=() if public else tuple(unprotected),
            public=public,
            owners=dealt.train.owners,
            class_names=class_names,
            features=features,
            records_per_person=records_per_person,
            own_epsilons=None if epsilons is None else _own_epsilons(epsilons, pool, dealt.train),
        )


def _own_epsilons(
    epsilons: npt.ArrayLike, pool: Examples, dealt: Assignment
) -> npt.NDArray[np.float64]:
    """Return what each person brings, by number, or each client if nobody names the persons."""
    given = np.asarray(epsilons, dtype=np.float64)
    given = np.where(np.isnan(given), np.inf, given)
    if given.shape != (len(pool),) or not (given > 0).all():
        raise ConfigError(f"epsilons: need {len(pool)} numbers above 0, or NaN for none")
    number, rows = pool.persons, np.arange(len(pool))
    if number is None:
        rows, number = dealt.rows, np.repeat(np.arange(dealt.clients), np.diff(dealt.offsets))
    else:
        rows, number = rows[number >= 0], number[number >= 0]
    least = np.full(int(number.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, number, given[rows])
    if (given[rows] != least[number]).any():
        raise ConfigError("epsilons: somebody's examples name different ones; give everybody one")
    return least


def _persons(persons: npt.ArrayLike | Owners, count: int) -> Assignment:
    """Return which of `count` examples belong to each person."""
    entries = np.size(persons.codes if isinstance(persons, Owners) else persons)
    if entries != count:
        raise ConfigError(f"persons: {entries} entries for {count} examples")
    try:
        return group(persons)
    except ConfigError as error:
        raise ConfigError(str(error).replace("owner", "person")) from None


def _with_persons(pool: Examples, persons: Assignment, most: int | None, seed: int) -> Examples:
    """Return the examples with their persons' numbers, and at most so many usable of each."""
    number = persons.numbers(len(pool))
    if most is None:
        return replace(pool, persons=number)
    if most < 1:
        raise ConfigError(f"records_per_person={most}: must be at least 1")
    usable = np.zeros(len(pool), dtype=np.bool_)
    drawn = persons.lottery(seed, "records of a person")
    usable[persons.rows[drawn[persons.positions < most]]] = True
    return replace(pool, usable=usable, persons=number)
