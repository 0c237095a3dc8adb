"""Things by name: the package's own, those of other installed packages, and a script's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar, cast

from fedveil.core.errors import ConfigError

T = TypeVar("T")


def extension(group: str, name: str) -> Any:
    """Load what an installed package offers under a name, or return None if none does.

    Args:
        group: An entry-point group, such as `fedveil.papers`.
        name: The entry point's name.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, name=name):
        return entry.load()
    return None


class Registry(Mapping[str, T], Generic[T]):
    """All things of one kind, by name; looked for when first asked for.

    The package's own are in the modules of the folder `home`: they register themselves, or are
    whatever of type `accepts` stands at their top level. Other packages name theirs in the
    entry-point group `group`: the module is imported when its name is asked for, and what the entry
    point names is added unless the module has done so itself. A name belongs to one thing for good:
    nobody can take the place of another's method by installing a package.
    """

    def __init__(self, kind: str, group: str, home: str | None, accepts: Any = None) -> None:
        self.kind, self.group, self.home, self.accepts = kind, group, home, accepts
        self._things: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._origins: dict[str, str] = {}  # which function brought it
        self._own_loaded = False

    def add(self, name: str, thing: T, origin: str, aliases: tuple[str, ...] = ()) -> T:
        """Add a thing and return it.

        Args:
            name: Its name.
            thing: The thing.
            origin: Where it was defined. A second definition from the same place, as by a notebook
                cell that is run twice, replaces the first.
            aliases: Other names for it.

        Raises:
            ConfigError: The name belongs to a thing from another place.
        """
        for used_name in (name, *aliases):
            if self._origins.get(used_name, origin) != origin:
                raise ConfigError(
                    f"{self.kind} {used_name!r}: {self._origins[used_name]} has this name. Give "
                    f"{origin} another one."
                )
        self._things[name] = thing
        self._origins |= dict.fromkeys((name, *aliases), origin)
        self._aliases |= dict.fromkeys(aliases, name)
        return thing

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that takes up a class or function under this name."""
        return lambda thing: self.add(
            name,
            thing,
            f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', repr(thing))}",
        )

    def name_of(self, thing: object) -> str | None:
        """Return the name of a thing that was taken up before, or None."""
        return next((name for name, candidate in self._things.items() if candidate is thing), None)

    def find(self, name: str, key: str, also: tuple[str, ...] = ()) -> T:
        """Return the thing of this name.

        Args:
            name: Its name.
            key: The recipe key or argument that named it, for the message.
            also: Names that are understood elsewhere, to be suggested as well.

        Raises:
            ConfigError: There is no such name.
        """
        try:
            return self[name]
        except KeyError:
            names = [*self, *also]
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {str(near[0])!r}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"{key}: unknown {self.kind} {name!r}; {hint}") from None

    def __getitem__(self, name: str) -> T:
        self._load_own()
        if self._aliases.get(name, name) not in self._things:
            self._load_others(name)
        if self._aliases.get(name, name) not in self._things:
            self._load_others()  # it may be another name of something
        return self._things[self._aliases.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        self._load_own()
        self._load_others()
        return iter(sorted(self._things))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _load_own(self) -> None:
        if self._own_loaded or self.home is None:
            return
        for entry in iter_modules(import_module(self.home).__path__, f"{self.home}."):
            if entry.ispkg:
                continue
            module = import_module(entry.name)
            for thing in vars(module).values() if self.accepts is not None else ():
                if isinstance(thing, self.accepts) and self._things.get(thing.name) is not thing:
                    self.add(thing.name, thing, entry.name)
        self._own_loaded = True

    def _load_others(self, name: str | None = None) -> None:
        """Import what installed packages offer: all of it, or what goes by this name."""
        from importlib.metadata import entry_points

        for entry in entry_points(group=self.group):
            if entry.name in self._things or name not in (None, entry.name):
                continue
            try:
                thing = entry.load()
            except ConfigError:
                raise
            except Exception as error:  # whatever another's module may raise
                raise ConfigError(
                    f"{self.kind} {entry.name!r}: {entry.value} cannot be imported "
                    f"({type(error).__name__}: {error}); mend or uninstall its package"
                ) from None
            if entry.name in self._things:
                continue
            if self.accepts is None or not isinstance(thing, self.accepts):
                raise ConfigError(
                    f"{self.kind} {entry.name!r}: {entry.value} registers nothing of that name"
                )
            self.add(entry.name, cast(T, thing), entry.value)
