"""Whether data that somebody calls public are the protected ones: refused, as far as can be known.

The answer depends on the protected data and is meant for whoever holds them. What it cannot see
(rows that were changed, tables in which most rows look alike) stands in the guarantee as declared.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.compute as pc

from fedveil.core.errors import PrivacyRefusal
from fedveil.data.federation import HELD_OUT_NOTE, Examples, Federation
from fedveil.data.tablefile import read_table

SHARE = 0.1  # of the rows of either that may be in both by coincidence
_ALIKE = 0.5  # with fewer different rows than this share, rows do not tell whose they are
_TOGETHER = 4096  # rows encoded at a time


class NotPublic(PrivacyRefusal):
    """Data that were called public are the protected data, or hold rows of them."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: scores and settings taken from it would be releases without noise",
            "name data of other people, from a public source (fedveil data list) or file",
        )


def check_files(public: Path, private: Path, client_column: str | None) -> None:
    """Refuse the private file under any name, a copy of it, and a table with many of its rows."""
    if public.samefile(private) or filecmp.cmp(public, private, shallow=False):
        raise NotPublic(f"{public} is the private file itself")
    one, other = read_table(public), read_table(private)
    shared = [n for n in one.column_names if n in other.column_names and n != client_column]
    if shared:
        _check_share(_texts(one, shared), list(_texts(other, shared)), f"rows of {public}")


def check_federations(public: Federation, private: Federation, source: str) -> None:
    """Refuse public examples of which many are examples of the protected clients."""
    if public.input_shape != private.input_shape or public.task is not private.task:
        return
    owned = [private.train]
    if HELD_OUT_NOTE in private.notes:
        owned += [private.test, *([private.validation] if private.validation is not None else [])]
    theirs = [key for part in owned for key in _encoded(private, part)]
    ours = (key for part in (public.train, public.test) for key in _encoded(public, part))
    _check_share(ours, theirs, f"examples of {source}")


def _check_share(public: Iterable[object], private: list[object], what: str) -> None:
    known = set(private)
    if len(known) < _ALIKE * len(private):
        return
    asked = set(public)
    if len(asked & known) > SHARE * min(len(asked), len(known)):
        raise NotPublic(f"{what} stand in the protected data")


def _texts(table: object, columns: list[str]) -> Iterator[object]:
    texts = [pc.fill_null(table.column(name).cast("string"), "") for name in columns]  # type: ignore[attr-defined]
    joined = pc.binary_join_element_wise(*texts, "\x1f")
    return (hash(text) for text in joined.to_pylist())


def _encoded(federation: Federation, part: Examples) -> Iterator[object]:
    for begin in range(0, len(part), _TOGETHER):
        rows = slice(begin, begin + _TOGETHER)
        inputs = federation.model_inputs(part.inputs[rows])
        for values, target in zip(inputs, part.targets[rows], strict=True):
            yield hash((values.tobytes(), target.tobytes()))
