"""A page: one table or figure of a paper, with everything that is needed to run and read it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from importlib import import_module, resources
from inspect import signature
from itertools import product
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedveil.core.arguments import one_of
from fedveil.core.errors import ConfigError, FedveilError
from fedveil.report.store import Outcome
from fedveil_lab.reproduction.case import Case, Label


class Scale(StrEnum):
    """How much of the paper's size is run."""

    QUICK = "quick"  # minutes on two cores, the comparison still means something
    FULL = "full"  # the paper's size, as far as the data allow


@dataclass(frozen=True)
class Difference:
    """Where we cannot, or do not, do what the paper did."""

    what: str
    paper: str
    here: str
    only: Scale | None = None  # at one scale alone


@dataclass(frozen=True)
class Panel:
    """One picture: `y` against `x`, one line for each value of `by`, for rows that match `where`.

    `x` is a label (numbers, or words for marks without lines), or "round" for curves over a run.
    `y` is a figure of the outcome. `minus` names the line that is taken off every other, seed by
    seed; bands are then standard errors.
    """

    title: str
    x: str
    y: str
    by: str
    where: tuple[tuple[str, Label], ...] = ()
    x_label: str = ""
    y_label: str = ""
    log_y: bool = False
    log_x: bool = False
    minus: Label | None = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    `cases(scale)` is the grid of runs, `seeds` how often each is repeated at the two scales.
    `metric` is the figure whose mean stands in the table, in `unit`. What comes out is told in
    sentences (`findings`): rows that differ in the labels `compare` alone are held against the one
    whose first of them is `base`, or the best and the worst are named; also each at its `best_of`
    some label.
    """

    name: str  # as typed: liang-table-1
    paper: str
    title: str
    setting: tuple[str, ...]  # of the paper, one line each
    differences: tuple[Difference, ...]
    cases: Callable[..., tuple[Case, ...]]  # of a scale
    metric: str
    unit: str
    panels: tuple[Panel, ...]
    quick_seeds: int = 2
    full_seeds: int = 3
    compare: tuple[str, ...] = ()
    base: Label | None = None
    best_of: str = ""
    quick_minutes: float = 3.0  # on two cores; told by `list`
    full_minutes: float = 30.0
    run: Callable[..., Outcome] | None = None  # in place of a federated run, where there is none
    reading: str = ""  # how the paper's number is to be read, where that is not plain

    def seeds(self, scale: Scale) -> int:
        return self.quick_seeds if scale is Scale.QUICK else self.full_seeds

    def minutes(self, scale: Scale) -> float:
        return self.quick_minutes if scale is Scale.QUICK else self.full_minutes

    def changed(self, given: Mapping[str, Any]) -> Experiment:
        """Return the experiment with other settings in all its cases, under a name of its own.

        Args:
            given: Recipe keys (with a dot) and settings of the page's cases (without).
        """
        told = ", ".join(f"{name} = {value}" for name, value in given.items())
        free = (
            replace(panel, where=tuple((k, v) for k, v in panel.where if k not in given))
            for panel in self.panels
        )
        return replace(
            self,
            name=f"{self.name}-changed",
            title=f"{self.title}; with {told}",
            differences=(*self.differences, Difference("set by hand", "as above", told)),
            cases=partial(self.cases, given=given),
            panels=tuple(dict.fromkeys(free)),
        )


@cache
def table_of(name: str) -> dict[str, Any]:
    """Return the TOML table of a paper's pages."""
    text = (resources.files("fedveil_lab.reproduction.pages") / f"{name}.toml").read_text("utf-8")
    return tomllib.loads(text)


def read_pages(name: str) -> Iterator[Experiment]:
    """Yield the experiments of `pages/NAME.toml`; functions that it names are in `pages/NAME.py`.

    A group is a table with a list `page`; its other fields are those of all its pages, unless a
    page has its own. `case` names the function that makes a case (the group's name, if not given)
    from the group's `recipe` and the settings of a block in `cases`: a grid over the lists of
    `each`, first list outermost, where `quick` and `full` replace what differs by scale. A table in
    a list sets several at once, and names with a dot are recipe keys. `panels` are written alike.
    """
    module = import_module(f"fedveil_lab.reproduction.pages.{name}")
    for group, fields in table_of(name).items():
        for page in fields.get("page", ()):
            own = {**fields, **page}
            differences = (*own.get("also_differs", ()), *own["differences"])
            yield Experiment(
                **{key: own[key] for key in _PLAIN if key in own},
                setting=tuple(own["setting"]),
                differences=tuple(Difference(*one) for one in differences),
                cases=partial(_cases, getattr(module, own.get("case", group)), own),
                panels=tuple(_panels(page["panels"])),
                compare=tuple(own.get("compare", ())),
                run=getattr(module, own["run"]) if "run" in own else None,
            )


_PLAIN = (
    *("name", "paper", "title", "metric", "unit", "reading", "base", "best_of"),
    *("quick_seeds", "full_seeds", "quick_minutes", "full_minutes"),
)


def _cases(
    make: Callable[..., Case],
    page: Mapping[str, Any],
    scale: Scale,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Case, ...]:
    """Return the cases of a page; where `given` settings make two alike, the first one stays."""
    common = {**page.get("recipe", {}), **page.get(f"recipe_{scale}", {})}
    found: dict[Any, Case] = {}
    for block in page["cases"]:
        if block.get("scale", scale) == scale:
            for chosen in _grid(block, block.get(str(scale), {})):
                chosen |= given
                recipe = {key: value for key, value in chosen.items() if "." in key}
                settings = {key: value for key, value in chosen.items() if "." not in key}
                case = _made(make, scale, {**common, **recipe}, settings)
                found.setdefault((case.labels, json.dumps(case.settings())), case)
    keys = {key: value for key, value in given.items() if "." in key}
    for case in found.values():
        for key, value in keys.items():
            if dict(case.values).get(key) != value or not _is_read(key):
                raise ConfigError(
                    f"--set {key}: the page decides it for {case.described()!r}. Set what it "
                    f"follows from: {', '.join(_settings_of(make))}"
                )
        if keys and "run" not in page:
            from fedveil.planning.unread import refuse_unread
            from fedveil_lab.reproduction.run_case import recipe_of

            refuse_unread(recipe_of(case, 0))
    return tuple(found.values())


# Keys that a case's own data and noise decide, or that only `fedveil run` reads.
_NOT_READ = (
    *("data.", "evaluation.", "privacy.epsilon", "privacy.delta", "privacy.noise_multiplier"),
    *("privacy.arithmetic", "privacy.budgets", "privacy.tuned_on", "privacy.trusted_parts"),
    *("training.class_weights", "training.batches", "training.batch_rate"),
)
_OF_MODEL = ("model.name", "model.hidden", "model.input_norm")


def _is_read(key: str) -> bool:
    return key in _OF_MODEL if key.startswith("model.") else not key.startswith(_NOT_READ)


_NOT_SETTINGS = ("scale", "recipe", "labels", "published", "seeds", "best")


def _made(
    make: Callable[..., Case], scale: Scale, recipe: Mapping[str, Any], settings: Mapping[str, Any]
) -> Case:
    hints = get_type_hints(make)
    for name, value in settings.items():
        if name not in hints:
            raise ConfigError(
                f"--set {name}: the cases of this page have no such setting. Give a recipe key, as "
                f"training.rounds, or one of {', '.join(_settings_of(make))}"
            )
        if get_origin(hints[name]) is Literal:
            one_of(get_args(hints[name]))(name, value)
    try:
        return make(scale, recipe, **settings)
    except FedveilError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        told = ", ".join(f"{name} = {value}" for name, value in settings.items())
        raise ConfigError(f"--set: the page has no case with {told} ({error!r})") from None


def _settings_of(make: Callable[..., Case]) -> list[str]:
    return [name for name in signature(make).parameters if name not in _NOT_SETTINGS]


def _grid(block: Mapping[str, Any], change: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of a block with each choice from its lists."""
    fixed = {**block, **change}
    fixed = {key: value for key, value in fixed.items() if key not in ("each", "scale", *Scale)}
    axes = {**block.get("each", {}), **change.get("each", {})}
    for values in product(*axes.values()):
        chosen = dict(fixed)
        for name, value in zip(axes, values, strict=True):
            chosen |= value if isinstance(value, dict) else {name: value}
        yield chosen


def _panels(blocks: Sequence[Mapping[str, Any]]) -> Iterator[Panel]:
    for block in blocks:
        each, names = block.get("each", {}), block.get("names", {})
        fields = {k: v for k, v in block.items() if k not in ("each", "names", "vary")}
        for where in _grid({"each": each}, {}):
            shown = {name: names.get(str(value), value) for name, value in where.items()}
            for one in block.get("vary", ({},)):
                own = {**fields, **one}
                title = own.pop("title").format(**shown)
                yield Panel(title=title, where=tuple(where.items()), **own)
