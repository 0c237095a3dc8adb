"""A recipe: everything a run is made from, as a TOML file or `--set section.key=value`.

Unknown keys, wrong types and impossible values are refused with the nearest right key; nothing is
guessed. The resolved recipe, defaults included, is written to the run directory.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.data.folder import FILE, is_many
from fedveil.methods.recipes.sections import (
    AggregationSection,
    DataSection,
    PrivacySection,
    Recipe,
    Voting,
)
from fedveil.methods.recipes.values import build
from fedveil.methods.registry import METHODS

__all__ = [
    "DEFAULT_JOB",
    "DataSection",
    "Recipe",
    "as_run",
    "assigned",
    "parse",
    "read",
    "shipped",
    "to_table",
    "with_defaults",
    "without_privacy",
]

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


# Where no clip is set: one that falls to this quantile of the updates' lengths, for noise beyond
# them hides nothing. It does not rise, for that may cost more in noise than longer updates gain.
_CLIP, _QUANTILE = 1.0, 0.3


def read(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file, or in a recipe that comes with the package, by its name."""
    if path.suffix in (".csv", ".parquet", ".tsv", ".gz"):
        how = f"fedveil run --data {path} --client-column COLUMN --label COLUMN"
        several = f"several files: --data 'DIR/*{path.suffix}' in quotes"
        raise ConfigError(f"{path}: a table, not a recipe; train on it with: {how} ({several})")
    try:
        return tomllib.loads(recipe_file(path).read_text(encoding="utf-8"))
    except IsADirectoryError:
        raise ConfigError(
            f"{path}: a folder, not a recipe. Name the recipe in it ({path / 'recipe.toml'}); "
            "fedveil report compares finished runs."
        ) from None
    except FileNotFoundError:
        from difflib import get_close_matches

        near = get_close_matches(str(path), shipped(), n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "fedveil methods lists recipes."
        raise ConfigError(f"recipe {path}: there is no such file or name. {hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path}: not valid TOML: {error}") from None


def shipped() -> dict[str, Path]:
    """Return the recipes that come with the package, by name."""
    folder = Path(str(resources.files("fedveil.methods.recipes")))
    files = sorted(folder.rglob("*.toml"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}


def recipe_file(path: Path) -> Path:
    """Return the file that a path or name means.

    Args:
        path: A file, or a recipe of the package as NAME or recipes/NAME.toml; NAME may have a
            folder in front, as best/NAME.
    """
    ours = shipped()
    if path.exists():
        return path
    if path.as_posix() in ours:  # of which some, as best/adult-epsilon-0.5, seem to have a suffix
        return ours[path.as_posix()]
    folders = [parent.name for parent in path.parents]
    if path.suffix == ".toml" and "recipes" in folders:
        inner = path.parts[len(path.parts) - 1 - folders.index("recipes") :]
        name = Path(*inner).with_suffix("").as_posix()
    elif path.parent == Path() and not path.suffix:
        name = path.stem
    else:
        return path
    if name not in ours and name in METHODS:
        return ours.get(METHODS[name].name, path)  # a method's earlier name
    return ours.get(name, path)


def parse(
    table: Mapping[str, Any],
    assignments: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> Recipe:
    """Build a recipe; later arguments override earlier ones.

    Args:
        table: Sections and keys, as a TOML file has them.
        assignments: `section.key=value` texts.
        values: Values by dotted name.

    Raises:
        ConfigError: A key is unknown, or a value has the wrong type.
    """
    merged = {key: dict(v) if isinstance(v, Mapping) else v for key, v in table.items()}
    if isinstance(merged.get("aggregation"), str):
        merged["aggregation"] = {"secure": merged["aggregation"]}
    changes = {**assigned(assignments), **(values or {})}
    if isinstance(changes.get("aggregation"), str):
        changes["aggregation.secure"] = changes.pop("aggregation")
    for section, one, other in _ALTERNATIVES:
        for changed, replaced in ((one, other), (other, one)):
            if f"{section}.{changed}" in changes and isinstance(merged.get(section), dict):
                merged[section].pop(replaced, None)
    method = changes.get("training.method")  # asked for only if it is named: that loads torch
    if method is not None and str(method) in METHODS and not METHODS[str(method)].private:
        merged = {key: v for key, v in merged.items() if key not in ("privacy", "aggregation")}
    sums = merged.get("aggregation")
    if changes.get("privacy.trust") in ("local", "central") and isinstance(sums, dict):
        sums.pop("secure", None)  # the recipe's secure sums were for another trust
    for name, value in changes.items():
        _assign(merged, name, value)
    _choose_by_unit(merged)
    _name_clients(merged)
    privacy, data = merged.get("privacy"), merged.get("data")
    if isinstance(privacy, dict) and isinstance(data, dict) and privacy.get("epsilon_column"):
        merged["data"] = {**data, "epsilon_column": privacy["epsilon_column"]}
    return typing.cast(Recipe, build(Recipe, merged, ""))


def assigned(assignments: Sequence[str]) -> dict[str, Any]:
    """Return the values by name of `name=value` assignments, each read as TOML or as a word.

    Raises:
        ConfigError: An assignment has no name or no equals sign.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {assignment}: write section.key=value")
        changes[name.strip()] = _value(text.strip())
    return changes


def _choose_by_unit(table: dict[str, Any]) -> None:
    """Choose dp-sgd for a recipe that protects records or persons and names no method."""
    training, privacy = table.get("training", {}), table.get("privacy", {})
    if not (isinstance(training, dict) and isinstance(privacy, dict)):
        return
    if privacy.get("unit") in ("record", "person"):
        table["training"] = {"method": "dp-sgd", **training}


def _name_clients(table: dict[str, Any]) -> None:
    """Make each of several files a client if nothing else says whose rows they hold."""
    data = table.get("data", {})
    if not isinstance(data, dict) or not isinstance(file := data.get("file"), str):
        return
    if not {"client_column", "partition"} & set(data) and is_many(Path(file)):
        table["data"] = {**data, "client_column": FILE}


_SEEN_SAMPLING = {"local": "round-robin", "distributed": "balanced"}  # no credit for a sample


def with_defaults(recipe: Recipe) -> Recipe:
    """Fill in what a recipe left open: cohort or rate, steps or epochs, budget, clip."""
    training, privacy, aggregation = recipe.training, recipe.privacy, recipe.aggregation
    method = METHODS.find(training.method, "training.method")
    training = replace(training, method=method.name)
    if aggregation.secure == "secure":
        aggregation = replace(aggregation, secure="ideal")
    hidden, shares = aggregation.secure in ("masked", "ideal"), method.trust is Trust.DISTRIBUTED
    if method.private and hidden and privacy.trust is None and not shares:
        privacy = replace(privacy, trust="distributed")
    if training.sampling is None:
        usual = _SEEN_SAMPLING.get(privacy.trust or method.trust, "poisson")
        if not method.private:
            usual = "poisson"
        elif privacy.correlated is not None:
            usual = "round-robin"  # a public schedule keeps a client's turns apart
        training = replace(training, sampling=method.sampling or usual)
    if training.sampling != "everyone" and training.cohort is None and training.rate is None:
        training = replace(training, rate=0.5)
    if training.local_steps is None and training.local_epochs is None:
        training = replace(training, local_epochs=5)
    if method.private and privacy.epsilon is None and privacy.noise_multiplier is None:
        privacy = replace(privacy, epsilon=4.0)
    if privacy.clip_norm is None:
        privacy = replace(privacy, clip_norm=_CLIP)
    return replace(
        with_full_paths(recipe),
        training=training,
        method=method.settings(recipe.method),
        privacy=privacy,
        aggregation=aggregation,
    )


def as_run(recipe: Recipe) -> Recipe:
    """Fill in a recipe's defaults as `fedveil run` does.

    Where a budget but no clip is set, and a trusted aggregator adds Gaussian noise, the clip falls
    to where most updates end.
    """
    resolved = with_defaults(recipe)
    method, privacy = METHODS[resolved.training.method], resolved.privacy
    left_open = recipe.privacy.clip_norm is privacy.clip_quantile is privacy.clip_highest is None
    tracks = left_open and "privacy.clip_quantile" in method.keys and privacy.epsilon is not None
    central = method.trust is Trust.CENTRAL and privacy.trust in (None, "central")
    # By turns, noise that cancels is worth more, and needs a clip that stays.
    turns = privacy.correlated is not None or resolved.training.sampling == "round-robin"
    if not (tracks and central and privacy.noise == "gaussian") or turns:
        return resolved
    return replace(resolved, privacy=replace(privacy, clip_quantile=_QUANTILE, clip_highest=_CLIP))


def with_full_paths(recipe: Recipe) -> Recipe:
    """Make the paths of files absolute, so that a run can be resumed from anywhere."""
    paths = {name: getattr(recipe.data, name) for name in ("file", "schema", "directory")}
    absolute: dict[str, Any] = {
        name: str(Path(path).absolute()) for name, path in paths.items() if path is not None
    }
    model, start = recipe.model, recipe.model.start
    if start is not None:
        model = replace(model, start=str(Path(start).absolute()))
    return replace(recipe, data=replace(recipe.data, **absolute), model=model)


def without_privacy(recipe: Recipe) -> Recipe:
    """Return the same training as FedAvg, without clip, noise and the parts that belong to them."""
    training = replace(
        recipe.training, method="fedavg", penalty=None, sparsity=None, upload="dense"
    )
    return replace(
        recipe,
        training=training,
        method={},
        aggregation=AggregationSection(),
        privacy=PrivacySection(),
        voting=Voting(),
    )


def to_table(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a TOML table; keys that are not set are left out."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
            return {name: plain(item) for name, item in fields if item not in (None, {})}
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items() if item is not None}
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
