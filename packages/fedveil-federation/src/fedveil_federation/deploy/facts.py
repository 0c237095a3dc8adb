"""What a plan says about everybody's data, and what names a plan."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation, Task

MAX_PLAN = 1 << 20  # bytes; a thousand key cards fit, and sites keep what they have begun


@dataclass(frozen=True)
class Facts:
    """The public facts about the data.

    `sizes`: records of each site, where single records are protected and their number is public;
    persons of each site where they are protected; elsewhere ones, for then nobody is told.
    `agreement`: digest of what was agreed on, the schema among it.
    """

    name: str
    task: str
    classes: int
    input_shape: tuple[int, ...]
    sizes: tuple[int, ...]
    agreement: str = ""

    def __post_init__(self) -> None:
        if self.task not in list(Task):
            raise ConfigError(f"task = {self.task!r}: sites can train {', '.join(Task)}")
        numbers = (*self.input_shape, *self.sizes)
        if not self.sizes or any(type(one) is not int or not 1 <= one < 2**40 for one in numbers):
            raise ConfigError("facts: input_shape and sizes need whole numbers above zero")
        if type(self.classes) is not int or not 0 <= self.classes < 2**20:
            raise ConfigError(f"classes = {self.classes}: need a whole number")

    def federation(self, test: Examples | None = None) -> Federation:
        """A stand-in for the federation: its public numbers, and rows of zeros that take no room.

        `test`: public examples, at the hub.
        """
        sequence = self.task == Task.SEQUENCE  # tokens, and one to predict at every place
        kind = np.float32 if self.task == Task.REGRESSION else np.int64
        labels = (self.classes,) if self.task == Task.MULTI_LABEL else ()
        rows, own = sum(self.sizes), self.input_shape if sequence else labels
        zero = np.zeros((), np.int64 if sequence else np.float32)
        inputs = np.broadcast_to(zero, (rows, *self.input_shape))
        targets = np.broadcast_to(np.zeros((), kind), (rows, *own))
        none = Examples(inputs[:0].copy(), targets[:0].copy())
        return Federation(
            Examples(inputs, targets),
            np.concatenate([[0], np.cumsum(self.sizes)]),
            none if test is None else test,
            Task(self.task),
            self.classes,
            name=self.name,
            verified=True,
            elsewhere=True,
        )


def plan_digest(data: bytes) -> str:
    """Return the name of a plan's run, in every ledger and under every round."""
    return hashlib.sha256(b"fedveil plan" + data).hexdigest()
