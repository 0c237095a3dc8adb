"""Every type among every other: one client holds its values in another type than all others do.

How values are held says nothing, so nothing about other clients, and nothing that is public, may
follow from it; and a client's type must not end the run, for then everybody knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch

import fedveil as fv

from ..checks import Violation
from .reading import claims, differences
from .rows import Sheet
from .sources import Opened, opened

_NUMPY = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "longdouble", "complex64", "object", "str", "bytes"),
    *("datetime64[s]",),
)
_PYTHON: dict[str, Callable[[int], Any]] = {
    "bool()": bool,
    "int()": int,
    "float()": float,
    "str()": str,
    "Decimal()": Decimal,
    "Fraction()": Fraction,
    "None": lambda value: None,
    "complex()": complex,
}
_TORCH = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def _held(name: str) -> Callable[[Any], Any]:
    """How a type holds an array of whole numbers, small enough for all of them."""
    if name in _PYTHON:
        make = _PYTHON[name]
        return lambda values: [[make(int(x)) for x in row] for row in values]
    if name.startswith("torch."):
        return lambda values: torch.from_numpy(values).to(getattr(torch, name[6:]))
    return lambda values: values.astype(name)


TYPES = {name: _held(name) for name in (*_NUMPY, *_PYTHON, *(f"torch.{one}" for one in _TORCH))}


@dataclass(frozen=True)
class Mixture:
    """Three owners: all hold `usual`, or the middle one `odd` instead."""

    usual: str
    odd: str
    what: str  # inputs or targets
    door: str  # datasets or lists
    task: str

    def open(self, odd: bool) -> Opened:
        draw = np.random.default_rng(5)
        given: dict[str, Any] = {}
        for owner in ("a", "b", "c"):
            inputs, targets = draw.integers(0, 2, (4, 2)), np.array([[0], [1], [1], [0]])
            hold = TYPES[self.odd if odd and owner == "b" else self.usual]
            held = [inputs, targets]
            held[self.what == "targets"] = hold(held[self.what == "targets"])
            labels = [row[0] for row in held[1]]
            given[owner] = list(zip(held[0], labels, strict=True))
        settings: dict[str, Any] = {"task": self.task, "test_fraction": 0.0}
        if self.task == "classification":
            settings["classes"] = 2
        if self.door == "datasets":
            return opened(lambda: fv.from_datasets(given, shape=(2,), **settings))
        pairs = [pair for own in given.values() for pair in own]
        owners = [owner for owner, own in given.items() for _ in own]
        inputs, targets = (list(column) for column in zip(*pairs, strict=True))
        if self.what == "targets":  # the others are an array, whose type is public
            inputs = np.array(inputs)
        return opened(lambda: fv.Federation.from_arrays(inputs, targets, owners, **settings))


def mixtures() -> Iterator[Mixture]:
    """All ordered pairs of types, at each door, for inputs and targets."""
    for door in ("datasets", "lists"):
        for what in ("inputs", "targets"):
            for task in ("classification", "regression"):
                for usual in TYPES:
                    for odd in TYPES:
                        if odd != usual:
                            yield Mixture(usual, odd, what, door, task)


def examine_types(every: int = 1) -> Iterator[tuple[Mixture, bool, list[Violation]]]:
    """Each pair of types, whether it claims anything, and what is wrong; with `every`, each so
    many-th of them."""
    usual: dict[tuple[str, ...], Opened] = {}
    sheet = Sheet(0, "types", 2, 2, by_record=False)
    for number, mixture in enumerate(mixtures()):
        if number % every:
            continue
        key = (mixture.usual, mixture.what, mixture.door, mixture.task)
        if key not in usual:
            usual[key] = mixture.open(odd=False)
        if usual[key].end:  # a type that nobody can use is refused before anybody differs
            continue
        odd = mixture.open(odd=True)
        laws = [*differences(sheet, usual[key], odd, "b")]
        yield mixture, claims(usual[key].federation, sheet), laws
