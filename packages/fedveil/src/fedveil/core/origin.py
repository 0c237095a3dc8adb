"""Whether a part is the package's own: judged by identity, for any class can claim a name."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def _own_packages() -> tuple[Path, ...]:
    """Return the folders of this package and of fedveil-federation, which is proved with it."""
    folders = [Path(__file__).resolve().parents[1]]
    federation = find_spec("fedveil_federation")
    if federation is not None and federation.origin is not None:
        folders.append(Path(federation.origin).resolve().parent)
    return tuple(folders)


@cache
def _file(origin: str) -> Path:
    """Return where a module was loaded from; files do not move while they are in use."""
    return Path(origin).resolve()


def is_own(thing: object, package: Path | None = None) -> bool:
    """Return whether a class or function is the very one that a module of the package defines.

    `__module__` and `__qualname__` are attributes that anybody may write. So they are only taken as
    an address: the object that stands there, in a module loaded from the package's own files, must
    be this one.

    Args:
        thing: A class or a function.
        package: The directory that the module must have been loaded from. By default, that of
            fedveil or of fedveil-federation.

    >>> from fedveil.privacy.clipping import Clip
    >>> forged = type("Clip", (), {"__module__": Clip.__module__})
    >>> is_own(Clip), is_own(forged)
    (True, False)
    """
    if not address(thing):
        return False
    origin = getattr(getattr(sys.modules[thing.__module__], "__spec__", None), "origin", None)
    packages = _own_packages() if package is None else (package,)
    return isinstance(origin, str) and any(map(_file(origin).is_relative_to, packages))


def address(thing: object) -> str:
    """Return where a class or function is defined, as "package.module:Class".

    Returns:
        An empty string if something else stands there: a name that anybody may claim is no proof of
        origin.

    >>> from fedveil.privacy.clipping import Clip
    >>> address(Clip)
    'fedveil.privacy.clipping:Clip'
    """
    name, place = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(name, str) or not isinstance(place, str):
        return ""
    target: object = sys.modules.get(name)
    for step in place.split("."):
        target = getattr(target, "__dict__", {}).get(step)
    return f"{name}:{place}" if target is thing else ""


def is_own_object(part: object) -> bool:
    """Return whether an object's class is the package's own and none of its methods is replaced."""
    return is_own(type(part)) and is_unchanged(part)


def is_unchanged(part: object) -> bool:
    """Return whether an object has all methods of its class."""
    kind, held = type(part), getattr(part, "__dict__", {})
    return not any(callable(getattr(kind, name, None)) for name in held)
