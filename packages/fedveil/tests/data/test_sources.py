"""Every source on small files written here; and what the published data are known to hold."""

from __future__ import annotations

import gzip
import json
import os

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from tests.data.format_writers import database, example, idx

from fedveil.core.errors import ConfigError
from fedveil.data.federation import HELD_OUT_NOTE, Task
from fedveil.data.sources import SOURCES, adult, femnist, lending_club, load, mnist, shakespeare
from fedveil.data.sources.source import pixel_scaling
from fedveil.data.sources.synthetic import Synthetic

RNG = np.random.default_rng(0)


# Embedded and made up


def test_digits_are_a_hundred_equal_clients_in_the_unit_interval():
    federation = load("digits")
    assert federation.clients == 100
    assert set(federation.sizes) == {14, 15}
    assert len(federation.test) == 359
    seen = federation.model_inputs(federation.train.inputs)
    assert (seen.min(), seen.max()) == (0.0, 1.0)
    assert federation.notes == ()


def test_defaults_of_a_source_can_be_changed_one_by_one():
    assert load("digits", clients=20).clients == 20
    assert load("digits", cap=3).sizes.max() == 3
    assert load("digits", "dirichlet", alpha=0.1).clients == 100
    assert set(load("digits", "sorted", examples_per_client=50).sizes) == {50}
    assert len(load("digits", test_fraction=0.5).test) == 898
    one, two, other = (load("digits", seed=seed).train.inputs for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("arguments", "settings", "says"),
    [
        (("digit",), {}, "did you mean 'digits'?"),
        (("xyz",), {}, "digits, femnist"),
        (("digits", "owner"), {}, "no owners"),
        (("digits", "random"), {}, "partition 'random' is unknown"),
        (("digits",), {"alpha": 1.0}, "digits: partition 'iid' has no 'alpha'"),
        (("digits",), {"clients": 5000}, "5000 clients"),
        (("synthetic-linear", "iid"), {}, "takes no partition"),
        (("synthetic-linear",), {"features": 0}, "features: need"),
        (("synthetic-linear",), {"colour": 1}, "has no 'colour'"),
        (("synthetic-logistic",), {"dtype": "int8"}, "dtype: need one of"),
    ],
)
def test_wrong_names_and_settings_are_refused(arguments, settings, says):
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **settings)
    assert says in str(caught.value)


def test_linear_data_hold_the_true_weights_and_no_more_than_the_noise():
    made = Synthetic(Task.REGRESSION, clients=500, examples_per_client=20, features=5, noise=0.5)
    federation = made.federation()
    inputs = np.c_[federation.train.inputs, np.ones(10_000)]
    found, *_ = np.linalg.lstsq(inputs, federation.train.targets, rcond=None)
    # Standard error 0.5 / sqrt(10,000) = 0.005 a coordinate; five of them: 3e-6 over six.
    np.testing.assert_allclose(found, made.weights, atol=0.025)
    residual = federation.train.targets - inputs @ made.weights
    assert residual.std() == pytest.approx(0.5, rel=0.04)  # 5 sigma
    assert np.linalg.norm(made.weights) == pytest.approx(2.0)


def test_logistic_data_are_as_likely_as_the_model_says():
    federation = load(
        "synthetic-logistic", clients=2000, examples_per_client=20, features=4, seed=3
    )
    weights = Synthetic(Task.CLASSIFICATION, features=4, seed=3).weights
    chance = 1 / (1 + np.exp(-(federation.train.inputs @ weights[:-1] + weights[-1])))
    # Calibration in ten bins of 4,000: five standard deviations, once in 200,000 fresh seeds.
    for part in np.array_split(np.argsort(chance), 10):
        spread = np.sqrt((chance[part] * (1 - chance[part])).sum())
        assert abs(federation.train.targets[part].sum() - chance[part].sum()) < 5 * spread


def test_pixels_can_be_scaled_by_published_moments():
    pixels = RNG.integers(0, 256, (50, 8, 8, 3)).astype(np.uint8)
    unit = pixels / 255
    mean, deviation = (0.2, 0.4, 0.6), (0.1, 0.2, 0.3)
    np.testing.assert_allclose(
        pixel_scaling("standard", mean, deviation)(pixels), (unit - mean) / deviation, atol=1e-5
    )
    np.testing.assert_array_equal(pixel_scaling("raw", 0, 1)(pixels), pixels)
    with pytest.raises(ConfigError, match="pixels='bright'"):
        pixel_scaling("bright", 0, 1)


# Small files


def test_mnist_by_writer_joins_the_official_files_with_qmnists_labels(tmp_path):
    images = RNG.integers(0, 256, (6, 28, 28)).astype(np.uint8)
    labels = np.arange(6).astype(np.uint8)
    extended = np.stack([np.arange(8), np.zeros(8), np.arange(8) % 2 + 100], axis=1).astype("i4")
    contents = {
        "train-images-idx3-ubyte.gz": idx(images, 8),
        "train-labels-idx1-ubyte.gz": idx(labels, 8),
        "t10k-images-idx3-ubyte.gz": idx(images[:2], 8),
        "t10k-labels-idx1-ubyte.gz": idx(labels[:2], 8),
        "qmnist-train-labels-idx2-int.gz": idx(extended[:6], 12),
        "qmnist-test-labels-idx2-int.gz": idx(extended, 12),  # longer than MNIST's test part
    }
    paths = {name: tmp_path / name for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(gzip.compress(content))
    arrays = mnist.decode_idx(paths)
    np.testing.assert_array_equal(arrays["writer_train"], [100, 101, 100, 101, 100, 101])
    assert len(arrays["writer_test"]) == 2
    pool = mnist.build_by_writer(arrays, "idx")
    np.testing.assert_array_equal(pool.train.inputs, images)
    with pytest.raises(ConfigError, match="names no writers"):
        mnist.build_by_writer({k: v for k, v in arrays.items() if "writer" not in k}, "npz")


def test_femnist_from_the_federated_database(tmp_path):
    paper = np.ones(784, np.float32)
    paper[:10] = 0.0  # ink
    rows = [
        ("all_train", "f2", example(pixels=paper, label=[61])),
        ("all_train", "f1", example(pixels=paper, label=[10])),
        ("all_test", "f1", example(pixels=paper, label=[0])),
        ("digits_only_train", "f1", example(pixels=paper, label=[9])),
    ]
    path = database(tmp_path / "emnist_all.sqlite.lzma", rows)
    pool = femnist.build(femnist.decode_database({path.name: path}), "tff")
    assert list(pool.owners) == ["f1", "f2"]
    assert list(pool.train.targets) == [10, 61]
    assert len(pool.test) == 1
    assert femnist.CLASS_NAMES[61] == "z"
    seen = pool.scaling(pool.train.inputs)
    assert seen[0].reshape(-1)[:12].tolist() == [1.0] * 10 + [0.0] * 2  # ink is one
    with pytest.raises(ConfigError, match="test='unseen'"):
        femnist.build(femnist.decode_database({path.name: path}), "tff", test="unseen")


def roles(tmp_path, speeches):
    users = [{"user": name, "speeches": lines} for name, lines in speeches.items()]
    path = tmp_path / "shakespeare_roles.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"plays": [], "users": users}).encode()))
    return shakespeare.decode_roles({path.name: path})


def spoken(codes):
    return "".join(shakespeare.CHARACTERS[code] for code in codes)


def test_windows_of_a_role_predict_their_next_characters_and_never_leave_the_role(tmp_path):
    texts = {"A": ["x" * 30, "y" * 140], "B": ["short"], "C": ["abc" * 30]}
    pool = shakespeare.build(roles(tmp_path, texts), "roles")
    # A speaks 171 characters: two windows of 80 and their successors; B none; C one of 90.
    assert list(pool.owners) == ["A", "A", "C"]
    said = "x" * 30 + "\n" + "y" * 140
    assert spoken(pool.train.inputs[0]) == said[:80]
    assert spoken(pool.train.targets[0]) == said[1:81]
    assert spoken(pool.train.inputs[1]) == said[80:160]
    assert spoken(pool.train.targets[1]) == said[81:161]
    assert pool.train.targets.dtype == np.int64


def test_the_last_character_alone_can_be_predicted_at_every_place(tmp_path):
    text = "".join(chr(97 + i % 26) for i in range(100))
    pool = shakespeare.build(roles(tmp_path, {"A": [text]}), "roles", predict="last")
    assert pool.train.inputs.shape == (20, 80)
    assert pool.train.targets.shape == (20, 1)
    for start in range(20):
        assert spoken(pool.train.inputs[start]) == text[start : start + 80]
        assert spoken(pool.train.targets[start]) == text[start + 80]


def test_the_federated_shakespeare_puts_a_roles_lines_in_order(tmp_path):
    rows = [
        ("test", "HAMLET", example(snippets=b"c" * 90)),
        ("train", "HAMLET", example(snippets=b"a" * 90)),
        ("train", "HAMLET", example(snippets=b"b" * 90)),
    ]
    path = database(tmp_path / "shakespeare.sqlite.lzma", rows)
    arrays = shakespeare.decode_database({path.name: path})
    assert spoken(arrays["text"]) == "a" * 90 + "\n" + "b" * 90 + "\n" + "c" * 90


ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K\n"
    "52, ?, 209642, HS-grad, 9, Married-civ-spouse, ?, Husband, White, Male, "
    "99999, 0, 45, ?, >50K\n\n"
)


def test_adult_has_a_hundred_and_five_inputs_and_unknown_answers_none(tmp_path):
    (tmp_path / "adult.data").write_text(ADULT)
    (tmp_path / "adult.test").write_text(
        "|1x3 Cross validator\n" + ADULT.replace("50K\n", "50K.\n")
    )
    arrays = adult.decode({name: tmp_path / name for name in ("adult.data", "adult.test")})
    inputs = arrays["x_train"]
    assert inputs.shape == (4, 105)
    np.testing.assert_array_equal(inputs[:2], inputs[2:])
    np.testing.assert_array_equal(arrays["y_train"], [0, 1, 0, 1])
    names = adult.ENCODER.features
    assert inputs[0, names.index("age")] == pytest.approx((39 - 38.64) / 13.71, rel=1e-5)
    assert inputs[0, names.index("workclass=State-gov")] == 1
    hot = [name for name, value in zip(names, inputs[1], strict=True) if "=" in name and value]
    assert [name.split("=")[0] for name in hot] == [
        *("education", "marital-status", "relationship", "race", "sex"),
    ]
    assert inputs[1, names.index("capital-gain")] == 5.0  # clipped
    (tmp_path / "adult.data").write_text(ADULT.replace("<=50K", "50K"))
    with pytest.raises(ConfigError, match="neither of <=50K, >50K"):
        adult.decode({"adult.data": tmp_path / "adult.data"})
    (tmp_path / "adult.data").write_text("1, 2, 3\n")
    with pytest.raises(ConfigError, match="UCI's Adult"):
        adult.decode({"adult.data": tmp_path / "adult.data"})


def loans(tmp_path, official):
    """The same two hundred loans as the compact copy or the official files write them."""
    rng = np.random.default_rng(1)
    count = 200
    columns = {name: rng.integers(1, 50, count).astype(str) for name in lending_club.NUMBERS}
    columns["mths_since_last_record"][:150] = ""  # missed by three in four
    columns["mths_since_last_delinq"][:100] = ""
    columns["term"] = np.where(
        rng.random(count) < 0.5,
        " 36 months" if official else "36",
        " 60 months" if official else "60",
    )
    rates = rng.integers(500, 2500, count) / 100
    columns["int_rate"] = np.array([f"{r}%" if official else repr(r / 100) for r in rates.tolist()])
    dates = ("Dec-2010", "Jan-2011") if official else ("2010-12", "2011-01")
    columns["issue_d"] = np.array(dates * 100)
    columns["earliest_cr_line"] = np.array((dates[0],) * count)
    columns["emp_length"] = np.array(["< 1 year", "10+ years", "3 years", "n/a"] * 50)
    columns["grade"] = rng.choice(list("ABCDEFG"), count)
    columns["home_ownership"] = rng.choice(["RENT", "OWN"], count)
    columns["verification_status"] = np.array(["Verified"] * count)
    columns["purpose"] = rng.choice(["car", "other"], count)
    columns["addr_state"] = rng.choice(["CA", "NY"], count)
    columns["total_pymnt"] = rng.integers(1, 999, count).astype(str)
    lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
    path = tmp_path / ("official.csv" if official else "compact.csv")
    path.write_text("\n".join(lines) + "\n")
    return lending_club.decode({path.name: path}), rates


def test_loans_read_alike_from_both_files_and_rates_are_percents(tmp_path):
    ours, rates = loans(tmp_path, official=False)
    theirs, _ = loans(tmp_path, official=True)
    for name in ours:
        if name != "rate":
            np.testing.assert_array_equal(ours[name], theirs[name])
    np.testing.assert_allclose(theirs["rate"], rates, rtol=1e-9)
    np.testing.assert_allclose(ours["rate"], rates, rtol=1e-9)
    at = {name: ours["features"][:, i] for i, name in enumerate(ours["names"])}
    np.testing.assert_array_equal(at["credit_history"][:4], [0, 1, 0, 1])
    np.testing.assert_array_equal(at["emp_length"][:4], [0.5, 10, 3, np.nan])
    assert set(at["term"]) == {36.0, 60.0}


def test_loan_features_are_known_at_the_grant_and_mostly_present(tmp_path):
    arrays, _ = loans(tmp_path, official=False)
    pool = lending_club.build(arrays, "compact", components=0)
    assert "mths_since_last_delinq" in pool.features  # missed by half
    assert "mths_since_last_record" not in pool.features  # missed by more than 70 %
    assert not {"total_pymnt", "installment", "sub_grade", "int_rate"} & set(pool.features)
    np.testing.assert_allclose(pool.train.inputs.mean(axis=0), 0, atol=0.05)
    assert "grade" not in lending_club.build(arrays, "compact", components=0, grade=False).features
    with pytest.raises(ConfigError, match="components=99"):
        lending_club.build(arrays, "compact", components=99)


def test_principal_components_are_scikit_learns():
    from sklearn.decomposition import PCA

    data = RNG.normal(size=(300, 8)) @ RNG.normal(size=(8, 8))
    ours = lending_club.principal_components(data, 4)
    theirs = PCA(4, svd_solver="full").fit_transform(data)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-8)


# The published data


needs_data = pytest.mark.skipif(
    not os.environ.get("FEDVEIL_DATA"), reason="FEDVEIL_DATA names no directory of data sets"
)


@pytest.fixture(scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def here(name):
    """The source, if its files are in the directory; a loader that fails is no reason to skip."""
    from fedveil.data.sources.files import available

    if available(name, SOURCES[name].copies) is None:
        pytest.skip(f"the files of {name} are not in FEDVEIL_DATA")
    return load(name)


@needs_data
@pytest.mark.usefixtures("_cache")
class TestPublished:
    def test_mnist_is_dealt_as_in_the_paper(self):
        federation = here("mnist")
        assert (federation.clients, set(federation.sizes)) == (1000, {50})
        assert (len(federation.validation), len(federation.test)) == (10_000, 10_000)
        parts = (federation.train, federation.validation)
        everything = np.concatenate([part.inputs for part in parts])
        assert everything.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
        assert everything.std() / 255 == pytest.approx(0.3081, abs=5e-5)

    def test_mnist_writers_keep_their_own_digits(self):
        federation = here("mnist-writers")
        assert federation.clients == 539
        assert (federation.sizes.min(), federation.sizes.max()) == (19, 131)

    def test_femnist_writers(self):
        federation = here("femnist")
        if federation.clients == 300:
            assert (len(federation.train), len(federation.test)) == (43_739, 4_863)
            unseen = load("femnist", test="unseen")
            assert len(unseen.test) == 7_348
        corners = federation.model_inputs(federation.train.inputs[:, 0, 0])
        assert corners.mean() < 0.05  # paper is zero

    def test_cifar10_has_even_classes_and_the_published_channel_means(self):
        federation = here("cifar10")
        assert (federation.clients, set(federation.sizes)) == (500, {100})
        assert set(np.bincount(federation.train.targets)) == {5000}
        assert set(np.bincount(federation.test.targets)) == {1000}
        unit = federation.train.inputs.reshape(-1, 3).mean(axis=0) / 255
        np.testing.assert_allclose(unit, [0.4914, 0.4822, 0.4465], atol=5e-5)

    def test_adult_is_split_on_sixteen_devices_and_predicts_as_well_as_published(self):
        federation = here("adult")
        assert (federation.clients, set(federation.sizes)) == (16, {2442})
        assert (len(federation.validation), len(federation.test)) == (4880, 4880)
        assert federation.input_shape == (105,)
        assert HELD_OUT_NOTE in federation.notes
        model = LogisticRegression(max_iter=300).fit(
            federation.train.inputs, federation.train.targets
        )
        assert model.score(federation.test.inputs, federation.test.targets) > 0.84

    def test_loans_are_sorted_over_the_clients(self):
        federation = here("lending-club")
        if len(federation.train) == 34_000:
            assert (federation.clients, set(federation.sizes)) == (425, {80})
            assert len(federation.test) == 8507
            rates = federation.train.targets.reshape(425, 80)
            assert (rates[:-1].max(axis=1) <= rates[1:].min(axis=1)).all()
        assert federation.input_shape == (10,)
        spread = federation.train.inputs.var(axis=0)
        assert (np.diff(spread) < 0.05).all()  # components stand in order
        assert 5 < federation.train.targets.min() < federation.train.targets.max() < 40  # percent

    def test_shakespeare_roles_are_split_in_the_order_of_time(self):
        federation = here("shakespeare")
        assert federation.task is Task.SEQUENCE
        assert federation.input_shape == (80,)
        held = len(federation.test) / (len(federation.train) + len(federation.test))
        assert held == pytest.approx(0.22, abs=0.01)
        np.testing.assert_array_equal(
            federation.train.inputs[:, 1:], federation.train.targets[:, :-1]
        )

    def test_an_altered_copy_is_refused(self, tmp_path):
        from pathlib import Path

        here("adult")
        for name in ("adult.data.gz", "adult.test.gz"):
            original = Path(os.environ["FEDVEIL_DATA"]) / name
            if not original.is_file():
                pytest.skip("the compact copy of adult is not in FEDVEIL_DATA")
            (tmp_path / name).write_bytes(original.read_bytes())
        load("adult", data_dir=tmp_path)
        content = bytearray((tmp_path / "adult.data.gz").read_bytes())
        content[1000] ^= 1
        (tmp_path / "adult.data.gz").write_bytes(content)
        with pytest.raises(ConfigError, match=r"adult\.data\.gz: truncated or altered"):
            load("adult", data_dir=tmp_path)
