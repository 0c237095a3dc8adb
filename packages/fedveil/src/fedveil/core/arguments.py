"""Checks of single values: each returns the value, numbers as plain ones of Python, or raises a
ConfigError.

Also how checked values get into frozen dataclasses, and documents become them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from fedveil.core.errors import ConfigError

Built = TypeVar("Built")
Member = TypeVar("Member", bound=Hashable)

LARGEST_COUNT = 10**12  # more rounds, clients or uses than this is a typing error


def positive(name: str, value: Any) -> float:
    """Return a finite float above zero, between 1e-100 and 1e100 so that its square is finite."""
    number = _within(name, value, lambda x: 0 < x < math.inf, "a finite number above 0")
    return _within(name, number, lambda x: 1e-100 <= x <= 1e100, "one between 1e-100 and 1e100")


def not_negative(name: str, value: Any) -> float:
    """Return a finite float between 0 and 1e100."""
    _within(name, value, lambda x: 0 <= x < math.inf, "a finite number of at least 0")
    return 0.0 if value == 0 else positive(name, value)


def interval(text: str) -> Callable[[str, Any], float]:
    """The check for a number in an interval, such as "[0, 1)"."""
    low, high = (float(end) for end in text[1:-1].split(","))
    above = operator.ge if text[0] == "[" else operator.gt
    below = operator.le if text[-1] == "]" else operator.lt
    words = f"a number {'of at least' if text[0] == '[' else 'above'} {low:g}"
    if high < math.inf:
        words += f" and {'at most' if text[-1] == ']' else 'below'} {high:g}"

    def check(name: str, value: Any) -> float:
        return _within(name, value, lambda x: above(x, low) and below(x, high), words)

    return check


fraction = interval("(0, 1]")
share = interval("[0, 1)")
above_zero = interval("(0, inf)")


def delta_value(value: Any) -> float:
    """A delta in [0, 1): zero asks for pure differential privacy."""
    return share("delta", value)


def _within(name: str, value: Any, fits: Callable[[float], bool], what: str) -> float:
    number = number_of(name, value)
    if not fits(number):
        raise ConfigError(f"{name}: need {what}, got {value!r}")
    return number


def count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number of at least `least`.

    Args:
        name: The argument's name, for the message.
        value: Its value.
        least: The smallest number that is allowed.

    Raises:
        ConfigError: The value is no whole number, too small, or above `LARGEST_COUNT`.
    """
    number = whole(name, value)
    if not least <= number <= LARGEST_COUNT:
        bound = f"at least {least}" if number < least else f"at most {LARGEST_COUNT:,}"
        raise ConfigError(f"{name}: need a whole number of {bound}, got {value!r}")
    return number


def sentences(name: str, value: Any) -> tuple[str, ...]:
    """Return sentences of plain text, each once, on one line, with a capital and a full stop.

    They may quote names from a file, so characters that move a cursor or start a line are removed.
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{name}: need a list of sentences, got {value!r}")
    printable = ("".join(c if c.isprintable() else " " for c in one) for one in value)
    trimmed = [" ".join(one.split()).rstrip(".") for one in printable]
    if "" in trimmed:
        raise ConfigError(f"{name}: an empty sentence says nothing")
    return tuple(dict.fromkeys(f"{one[0].upper()}{one[1:]}." for one in trimmed))


def number_of(name: str, value: Any) -> float:
    """Return any real number as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name}: need a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{name}: {str(value)[:20]}... is too large") from None


def whole(name: str, value: Any) -> int:
    """Return any whole number as an int."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name}: need a whole number, got {value!r}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """Return True or False; a word such as "no" is refused, because Python counts it as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: need True or False, got {value!r}")
    return value


def one_of(allowed: Iterable[Member]) -> Callable[[str, Any], Member]:
    """Return a check for one of some values, or for a member of an enumeration given by its word.

    Members are compared with `is` elsewhere, so the check replaces a word by its member.
    """
    members = {member: member for member in allowed}

    def check(name: str, value: Any) -> Member:
        try:
            return members[value]
        except (KeyError, TypeError):
            words = ", ".join(map(str, members))
            raise ConfigError(f"{name}: need one of {words}, got {value!r}") from None

    return check


def instance_of(kind: type[Built], what: str = "") -> Callable[[str, Any], Built]:
    """Return a check for an object of a class.

    Args:
        kind: The class.
        what: What messages call it; by default the name of the class.
    """

    def check(name: str, value: Any) -> Built:
        if isinstance(value, kind):
            return value
        plain = value is None or isinstance(value, (str, Real))
        got = repr(value) if plain else f"a {type(value).__name__}"
        raise ConfigError(f"{name}: need a {what or kind.__name__}, got {got}")

    return check


def settle(instance: object, **values: object) -> None:
    """Store checked values on a frozen dataclass while it is being made."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def check_fields(instance: object, under: str = "", /, **checks: Callable[[str, Any], Any]) -> None:
    """Check fields of a frozen dataclass while it is being made, each by its name, which follows
    `under` in messages, and value."""
    values = {name: one(f"{under}{name}", getattr(instance, name)) for name, one in checks.items()}
    settle(instance, **values)


def plain_numbers(instance: object) -> None:
    """Store all numbers of a frozen dataclass as Python's own while it is being made.

    Those of other libraries may be short, and round or overflow where an account does not."""
    for name, value in list(vars(instance).items()):
        if isinstance(value, Integral) and not isinstance(value, int):
            settle(instance, **{name: whole(name, value)})
        elif isinstance(value, Real) and not isinstance(value, int | float):
            settle(instance, **{name: number_of(name, value)})


def optional(one: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Return a check that lets None pass and applies another check to everything else."""
    return lambda name, value: None if value is None else one(name, value)


def natural(name: str, value: Any) -> int:
    """Return a whole number of at least 0."""
    return count(name, value, least=0)


def described(document: Any, kinds: Mapping[str, type[Any]], what: str) -> Any:
    """Build the object that a document {"kind": name, field: value, ...} describes.

    Args:
        document: The document.
        kinds: Classes by the name that documents give them.
        what: What messages call the document.

    Raises:
        ConfigError: The kind is unknown, or the fields do not fit it.
    """
    if not isinstance(document, Mapping):
        raise ConfigError(f"{what}: need an object with a kind, got {document!r}")
    fields = dict(document)
    kind = kinds.get(str(fields.pop("kind", None)))
    if kind is None:
        raise ConfigError(f"{what}: kind {document.get('kind')!r} is none of {', '.join(kinds)}")
    return built(kind, fields, what)


def built(kind: type[Built], fields: Any, what: str) -> Built:
    """Return `kind(**fields)`.

    Raises:
        ConfigError: The fields are not those of the class.
    """
    if not isinstance(fields, Mapping):
        raise ConfigError(f"{what}: need an object, got {fields!r}")
    try:
        return kind(**fields)
    except TypeError:
        names = ", ".join(map(str, fields)) or "none"
        raise ConfigError(f"{what}: fields {names} do not describe a {kind.__name__}") from None
