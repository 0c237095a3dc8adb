"""Privacy: who is protected, what is released, what it costs.

`__init__.pyi` lists the public names; each is loaded from its module when first used, so that
importing this package costs nothing.
"""

from importlib import import_module

from fedveil.core.loading import homes_of

_HOMES = homes_of(__file__)
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
