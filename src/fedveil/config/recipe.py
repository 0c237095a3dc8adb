"""A recipe: everything a run is made from, as a TOML file or `--set section.key=value`.

Unknown keys, wrong types and impossible values are refused with the nearest right key; nothing is
guessed. The resolved recipe, defaults included, is written to the run directory.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError


@dataclass(frozen=True)
class DataSection:
    source: str = "digits"  # a name from `fedveil data list`; not used when `file` is set
    file: str | None = None  # a CSV or Parquet file
    client_column: str | None = None
    label: str | None = None
    schema: str | None = None  # public statistics of the file's columns
    task: str | None = None  # classification or regression; by default decided from the label
    partition: str | None = None  # iid, dirichlet, sorted or owner; None: the source's own
    clients: int | None = None
    alpha: float | None = None  # concentration of the Dirichlet partition
    examples_per_client: int | None = None
    cap: int | None = None  # most examples a client keeps
    test_fraction: float | None = None  # None: the source's own test part, or a fifth
    holdout: str | None = None  # within, latest, pooled or clients; None: the source's, or within
    public_fraction: float | None = None  # set aside as public, unlabelled inputs to vote on
    directory: str | None = None  # where local copies of the data sets are
    seed: int = 0  # of the partition; public


@dataclass(frozen=True)
class ModelSection:
    name: str = "auto"  # auto: linear or logistic regression, by task
    hidden: tuple[int, ...] = ()  # widths of the hidden layers of an MLP
    input_norm: float | None = None  # of a linear model: longer inputs are shortened to it
    seed: int = 0  # of the initial weights; public


@dataclass(frozen=True)
class TrainingSection:
    method: str = "dp-fedavg"
    rounds: int = 50
    sampling: str | None = None  # None: the method's own
    cohort: int | None = None  # (expected) clients in a round
    rate: float | None = None  # or their share of the population
    cohort_cap: int | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 0.1
    schedule: str = "constant"
    decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    weighting: str = "uniform"  # or examples: by each client's number of them
    weight_cap: int | None = None  # examples that count at most; a private weighting needs it
    penalty: float | None = None  # BLUR's lambda outside the clip; FedProx's everywhere
    sparsity: float | None = None  # LUS: share of each tensor's update set to zero
    upload: str = "dense"  # sparse uploads are refused where noise must cover all coordinates


@dataclass(frozen=True)
class PrivacySection:
    epsilon: float | None = None
    delta: float | None = None  # None: min(1e-5, units^-1.1)
    noise_multiplier: float | None = None  # instead of epsilon
    clip_norm: float = 1.0
    noise: str = "gaussian"  # or laplace, beside a clip in L1
    trust: str | None = None  # central, local or distributed; None: the method's own
    unit: str | None = None  # record or client, where a method can protect either
    adjacency: str | None = None  # add-remove, replace or zero-out; None: the proof's own
    public_clients: int | None = None  # declared, not counted: hides that a client is there at all
    colluders: int = 0  # clients that work with the adversary and bring no noise
    honest_shares: int | None = None  # noise shares sure to arrive, if fewer than the cohort
    rotate: bool = False  # rotate and round updates before a secure sum, as ddgauss does
    bits: int | None = None  # of the modulus of a rotated sum; None: as few as it takes
    clip_quantile: float | None = None  # the clip follows this quantile of the update norms
    clip_rate: float = 0.2  # how fast; 0 only releases the share within the clip
    clip_noise: float = 0.05  # std on the released count, as a share of the cohort
    arithmetic: str | None = None  # exact or idealised; None: exact without a seed
    tuned_on: tuple[str, ...] = ()  # what settings were tried out on: public, or not certified


@dataclass(frozen=True)
class AggregationSection:
    """Secure sums. `aggregation = "secure"` is short for `secure = "modelled"`, and `"full"` for
    `secure = "full"`. A method whose `privacy.trust` is left open is then under distributed trust.
    """

    secure: str | None = None  # full, modelled or none; None: modelled under distributed trust
    dropout: float = 0.0  # probability with which each device is lost in a round; simulated
    max_dropout: float | None = None  # share of a cohort that may be lost; None: as dropout needs
    min_honest: int | None = None  # honest noise shares in every sum; None: all that must arrive
    sparse: bool = False  # mask with some neighbours, not with everybody
    honest_server: bool = False  # on a sparse graph: the server does not lie about who was lost


@dataclass(frozen=True)
class ServerSection:
    optimizer: str = "sgd"  # sgd, adam or yogi
    learning_rate: float = 1.0
    momentum: float = 0.0
    smoothing: float = 0.0  # strength of Laplacian smoothing; 0: none
    smoothing_flat: bool = False  # the whole update as one ring, instead of tensor by tensor
    smoothing_order: str = "out-in-kernel"  # which weights of a convolution are neighbours
    smoothing_place: str = "after-noise"


@dataclass(frozen=True)
class VotingSection:
    """How the server of ae-dpfl learns from votes."""

    questions: int | None = None  # public inputs to label; None: all
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 0.01


@dataclass(frozen=True)
class EvaluationSection:
    every: int | None = None  # rounds; None: about twenty times a run
    baseline: bool = False  # also train without privacy and compare


@dataclass(frozen=True)
class EngineSection:
    """Speed only: nothing here can change what is guaranteed."""

    name: str = "auto"
    chunk: int | None = None  # clients trained together
    processes: int | None = None  # None: several if rounds are long enough
    threads: int | None = None  # of each process
    device: str | None = None  # cpu or cuda; None: cpu


@dataclass(frozen=True)
class Recipe:
    seed: int | None = None  # None: a protected run, noise from the operating system
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    aggregation: AggregationSection = field(default_factory=AggregationSection)
    server: ServerSection = field(default_factory=ServerSection)
    voting: VotingSection = field(default_factory=VotingSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    engine: EngineSection = field(default_factory=EngineSection)


# What `fedveil run` trains when it is given neither a recipe nor data.
DEFAULT_JOB: dict[str, Any] = {
    "training": {"rounds": 60, "rate": 0.5, "local_epochs": 3, "learning_rate": 2.0},
    "privacy": {"epsilon": 4.0, "clip_norm": 0.8},
}


# Of each pair a recipe sets one; setting the other on the command line takes its place.
_ALTERNATIVES = (
    ("training", "cohort", "rate"),
    ("training", "local_steps", "local_epochs"),
    ("privacy", "epsilon", "noise_multiplier"),
)


def read(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"recipe {path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path}: not valid TOML: {error}") from None


def parse(
    table: Mapping[str, Any],
    assignments: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> Recipe:
    """A recipe from a table, `section.key=value` assignments, and values by dotted name.

    The later ones win.
    """
    merged = {key: dict(v) if isinstance(v, Mapping) else v for key, v in table.items()}
    if isinstance(merged.get("aggregation"), str):
        merged["aggregation"] = {"secure": merged["aggregation"]}
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {assignment}: write section.key=value")
        changes[name.strip()] = _value(text.strip())
    changes |= values or {}
    if isinstance(changes.get("aggregation"), str):
        changes["aggregation.secure"] = changes.pop("aggregation")
    for section, one, other in _ALTERNATIVES:
        for changed, replaced in ((one, other), (other, one)):
            if f"{section}.{changed}" in changes and isinstance(merged.get(section), dict):
                merged[section].pop(replaced, None)
    for name, value in changes.items():
        _assign(merged, name, value)
    return typing.cast(Recipe, _build(Recipe, merged, ""))


NOT_PRIVATE = ("fedavg", "fedsgd", "fedprox")

_OWN_SAMPLING = {"fu": "round-robin", "ae-dpfl": "everyone"} | dict.fromkeys(
    ("hu", "dp-sgd", "ddgauss"), "balanced"
)
_OWN_SHARES = ("hu", "dp-sgd", "ddgauss", "ae-dpfl")  # distributed trust by themselves
_SEEN_SAMPLING = {"local": "round-robin", "distributed": "balanced"}  # no credit for a sample


def with_defaults(recipe: Recipe) -> Recipe:
    """Decide what was left open between alternatives: cohort or rate, steps or epochs, budget."""
    training, privacy, aggregation = recipe.training, recipe.privacy, recipe.aggregation
    if aggregation.secure == "secure":
        aggregation = replace(aggregation, secure="modelled")
    private = training.method not in NOT_PRIVATE
    hidden = aggregation.secure in ("full", "modelled")
    if private and hidden and privacy.trust is None and training.method not in _OWN_SHARES:
        privacy = replace(privacy, trust="distributed")
    if training.sampling is None:
        usual = _SEEN_SAMPLING.get(privacy.trust or "", "poisson")
        if training.method in NOT_PRIVATE:
            usual = "poisson"
        training = replace(training, sampling=_OWN_SAMPLING.get(training.method, usual))
    if training.sampling != "everyone" and training.cohort is None and training.rate is None:
        training = replace(training, rate=0.5)
    if training.local_steps is None and training.local_epochs is None:
        training = replace(training, local_epochs=5)
    if private and privacy.epsilon is None and privacy.noise_multiplier is None:
        privacy = replace(privacy, epsilon=4.0)
    files = {name: getattr(recipe.data, name) for name in ("file", "schema", "directory")}
    found: dict[str, Any] = {
        name: str(Path(path).absolute()) for name, path in files.items() if path is not None
    }
    data = replace(recipe.data, **found)  # a run can be resumed from anywhere
    return replace(recipe, data=data, training=training, privacy=privacy, aggregation=aggregation)


def without_privacy(recipe: Recipe) -> Recipe:
    """The same training as FedAvg: no clip, no noise, and none of the parts that go with them."""
    training = replace(
        recipe.training, method="fedavg", penalty=None, sparsity=None, upload="dense"
    )
    bare = AggregationSection(), PrivacySection()
    return replace(recipe, training=training, aggregation=bare[0], privacy=bare[1])


def to_table(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a TOML table; keys that are not set are left out."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
            return {name: plain(item) for name, item in fields if item is not None}
        return list(value) if isinstance(value, tuple) else value

    return typing.cast(dict[str, Any], plain(recipe))


def _assign(table: dict[str, Any], name: str, value: Any) -> None:
    *sections, key = name.split(".")
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {name}: {section} is not a section")
        table = inner
    table[key] = value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def _build(cls: type, table: Any, path: str) -> Any:
    if not isinstance(table, Mapping):
        raise ConfigError(f"recipe: {path} must be a section, not {table!r}")
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        if key not in hints:
            raise ConfigError(f"recipe: unknown key {name!r}{_nearest(key, path, hints)}")
        kind = hints[key]
        section = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        values[key] = _build(kind, value, name) if section else _typed(kind, value, name)
    return cls(**values)


def _nearest(key: str, path: str, hints: Mapping[str, Any]) -> str:
    """A hint at the nearest right key, in this section or in another."""
    here = get_close_matches(key, hints, n=1)
    if here:
        return f"; did you mean {f'{path}.{here[0]}' if path else here[0]!r}?"
    everywhere = {
        inner: f"{section}.{inner}"
        for section, kind in typing.get_type_hints(Recipe).items()
        if dataclasses.is_dataclass(kind)
        for inner in typing.get_type_hints(kind)
    }
    near = get_close_matches(key, everywhere, n=1)
    if near:
        return f"; did you mean {everywhere[near[0]]}?"
    return f"; there are {', '.join(hints)}"


def _typed(kind: Any, value: Any, name: str) -> Any:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    for option in options:
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if option in (str, bool) and isinstance(value, option):
            return value
        if option is str and name in ("data.label", "data.client_column") and value is not None:
            return str(value)
        if typing.get_origin(option) is tuple and isinstance(value, (list, tuple)):
            inner = typing.get_args(option)[0]
            return tuple(_typed(inner, item, f"{name}[{i}]") for i, item in enumerate(value))
    wanted = " or ".join(_kind_name(o) for o in options if o is not type(None))
    raise ConfigError(f"recipe: {name} must be {wanted}, got {value!r}")


def _kind_name(option: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    if option in names:
        return names[option]
    inner = names[typing.get_args(option)[0]].split(" ", 1)[1]
    return f"a list of {inner}s"
