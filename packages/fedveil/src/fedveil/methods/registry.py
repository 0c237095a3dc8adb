"""Which methods there are, and what each says of itself to people who choose between them.

A method is one file: a docstring that is its page, a function that makes it from Python, and one
that makes it from a recipe, which `@method` registers:

    @method("my-method", what="...", protects="all data of one client", towards="everybody")
    def from_recipe(recipe: Recipe) -> Method: ...

Files of other packages are found through the entry-point group `fedveil.methods`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fedveil.core.arguments import one_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.registry import Registry
from fedveil.core.units import Trust, Unit
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.recipes.values import typed

if TYPE_CHECKING:
    from fedveil.methods.parts.method import Method

Builder = Callable[[Recipe], "Method"]
T = TypeVar("T")

# Recipe keys that only some methods understand; setting one elsewhere is refused, not ignored.
BLUR, LUS = "training.penalty", "training.sparsity"
CLIP = (
    "privacy.clip_quantile",
    "privacy.clip_rate",
    "privacy.clip_noise",
    "privacy.clip_highest",
)
COLLUSION = ("privacy.colluders", "privacy.honest_shares")
CHANGE = ("privacy.trust", "privacy.adjacency")
SECRET_BATCHES = ("training.batches", "training.batch_rate")
UNIT = ("privacy.unit", "privacy.sites_per_person")
UPDATES = (
    *("privacy.noise", "privacy.public_clients", "privacy.rotate", "privacy.bits"),
    *("privacy.correlated", "privacy.bands"),
    *(*CHANGE, *COLLUSION),
)
OPTIONAL = frozenset({BLUR, LUS, *CLIP, *UPDATES, *SECRET_BATCHES, *UNIT})


@dataclass(frozen=True)
class Key:
    """A key of a method's own, set in a recipe's section [method]: its name, type, default, and a
    line that says what it is.

    >>> fv.Key("pull", float, 0.1, "strength of the pull back to the shared weights").default
    0.1
    """

    name: str
    kind: Any  # float, int, str, bool, tuple[int, ...], or one of them | None
    default: Any
    what: str


@dataclass(frozen=True)
class MethodEntry:
    """A method by name: what it is, whose data it protects, from whom, and what it understands.

    Attributes:
        name: What recipes call it.
        build: Makes the method from a recipe; its module's docstring is the method's page.
        what: What it does, in a line.
        source: Who wrote it.
        protects: Whose data it protects.
        towards: From whom.
        aliases: Other names.
        keys: The optional recipe keys that it understands, of `OPTIONAL`.
        own: Its own keys, which `build` finds in `recipe.method`.
        trust: Whom it trusts if the recipe says nothing.
        sampling: How cohorts are then chosen; None is what suits the trust.
        unit: Whose data are protected, if the recipe says nothing or the method has no choice.
        secret_batches: Secret batches lower epsilon whatever the other settings are, so they are
            the default where a batch is smaller than the data.
    """

    name: str
    build: Builder
    what: str
    source: str = ""
    protects: str = "nothing: no noise is added"
    towards: str = "nobody"
    aliases: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    own: tuple[Key, ...] = ()
    trust: Trust = Trust.CENTRAL
    sampling: str | None = None
    unit: Unit = Unit.CLIENT
    secret_batches: bool = False

    @property
    def private(self) -> bool:
        return self.towards != "nobody"

    @property
    def page(self) -> str:
        """The docstring of the method's file."""
        return (sys.modules[self.build.__module__].__doc__ or "").strip()

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The method's own keys with their values, defaults filled in; unknown ones are refused."""
        known = {key.name: key for key in self.own}
        for name in given.keys() - known.keys():
            there = f"it has {', '.join(known)}" if known else "it has none of its own"
            raise ConfigError(f"method.{name}: unknown key of method {self.name}; {there}")
        return {
            name: key.default
            if given.get(name) is None
            else typed(key.kind, given[name], f"method.{name}")
            for name, key in known.items()
        }


METHODS: Registry[MethodEntry] = Registry("method", "fedveil.methods", "fedveil.methods")


def method(name: str, **said: Any) -> Callable[[Builder], Builder]:
    """Register a function that makes a Method from a recipe (one with its defaults filled in).

    Args:
        name: What recipes call it.
        said: What the method says of itself: attributes of `MethodEntry`, of which `what` is
            needed. Leave out `protects` and `towards` if it adds no noise.

    Raises:
        ConfigError: `keys` holds what is no optional recipe key.
    """
    if unknown := set(said.get("keys", ())) - OPTIONAL:
        raise ConfigError(
            f"method {name!r}: {', '.join(sorted(unknown))}: no optional recipe keys; there are "
            f"{', '.join(sorted(OPTIONAL))}"
        )

    def register(build: Builder) -> Builder:
        entry = MethodEntry(name, build, **said)
        METHODS.add(name, entry, f"{build.__module__}:{build.__qualname__}", entry.aliases)
        return build

    return register


def register(key: str, name: str) -> Callable[[T], T]:
    """Return a decorator that gives a class, function or object a name in recipes.

    Args:
        key: The recipe key that names it: `server.optimizer`, `server.schedule`, `model.features`,
            `model.name`, `training.sampling` or `data.source`.
        name: What recipes call it. A name that is taken is refused.

    Raises:
        ConfigError: The key names no parts, or the name belongs to something else.

    >>> @fv.register("server.schedule", "halved")
    ... def halved(done: int, rounds: int) -> float:
    ...     return 0.5
    """
    from fedveil.data.sources import SOURCES
    from fedveil.privacy.sampling import SAMPLERS
    from fedveil.training.models.features import FEATURES
    from fedveil.training.models.zoo import MODELS
    from fedveil.training.server.optimizers import OPTIMIZERS
    from fedveil.training.server.schedules import SCHEDULES

    registries: dict[str, Registry[Any]] = {
        "data.source": SOURCES,
        "model.features": FEATURES,
        "model.name": MODELS,
        "server.optimizer": OPTIMIZERS,
        "server.schedule": SCHEDULES,
        "training.sampling": SAMPLERS,
    }
    if key not in registries:
        raise ConfigError(
            f"register: {key!r} is no key that names parts. There are {', '.join(registries)}."
        )
    return registries[key].register(name)


def method_of(recipe: Recipe) -> Method:
    """The method that a recipe (with its defaults) describes; refuses what makes no sense."""
    from fedveil.methods.parts.from_recipe import aggregation

    entry = METHODS.find(recipe.training.method, "training.method")
    _check_keys(recipe, entry)
    _check_order(recipe, entry)
    made = entry.build(replace(recipe, method=entry.settings(recipe.method)))
    if entry.private != (made.placement is not None):
        raise ConfigError(
            f"method {entry.name}: says that it protects {entry.protects}, and "
            f"{'adds no noise' if entry.private else 'adds noise'}"
        )
    return replace(made, name=entry.name, aggregation=aggregation(recipe))


def _check_keys(recipe: Recipe, entry: MethodEntry) -> None:
    own_unit = {"privacy.unit"} if recipe.privacy.unit == entry.unit else set()
    for key in sorted(OPTIONAL - set(entry.keys) - own_unit):
        section, name = key.split(".")
        given = getattr(recipe, section)
        default = next(field.default for field in fields(given) if field.name == name)
        if getattr(given, name) != default and (entry.private or section != "privacy"):
            if key == "privacy.unit":
                raise ConfigError(
                    f"{key}: method {entry.name} protects {entry.protects}; leave training.method "
                    "out, and one that protects the unit is chosen"
                )
            users = ", ".join(n for n, other in METHODS.items() if key in other.keys)
            raise ConfigError(f"{key}: method {entry.name} does not use it; {users} do")


def _check_order(recipe: Recipe, entry: MethodEntry) -> None:
    """Refuse orders of things that would leave values without a proof."""
    for key, value, fine, unproved, *why in (
        ("training.upload", recipe.training.upload, *_UPLOADS),
        ("server.smoothing_place", recipe.server.smoothing_place, *_PLACES),
    ):
        one_of((fine, unproved))(key, value)
        if value == unproved and entry.private:
            raise PrivacyRefusal(*why)


_UPLOADS = (
    *("dense", "sparse"),
    "a sparse upload shows which coordinates were kept, and noise on those alone does not cover "
    "the choice, which depends on the data",
    "leave training.upload dense: noise on every coordinate, no mask is sent",
)
_PLACES = (
    *("after-noise", "before-noise"),
    "smoothing before the noise would be part of the private computation, and the noise would no "
    "longer cover the whole vector independently",
    "leave server.smoothing_place after-noise: it costs nothing there",
)
