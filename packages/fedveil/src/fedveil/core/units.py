"""The words every guarantee is made of: who is protected, against which change, towards whom."""

from __future__ import annotations

from enum import StrEnum


class Unit(StrEnum):
    """Whose data a guarantee protects: one record, all records of one person, or a whole client.

    >>> [str(unit) for unit in fv.Unit]
    ['record', 'person', 'client']
    """

    RECORD = "record"  # one example of one client
    PERSON = "person"  # all records with the same value of a declared column
    CLIENT = "client"  # all data of one client


class Adjacency(StrEnum):
    """Which change of one unit the guarantee hides.

    `ADD_REMOVE`: the unit is there or not. `REPLACE`: it has other data, of the same size.
    `ZERO_OUT`: what it contributes is replaced by zero.

    >>> fv.Adjacency("replace").sensitivity_factor  # a sum moves by up to twice the clip norm
    2
    """

    ADD_REMOVE = "add-remove"  # the unit is present or absent
    REPLACE = "replace"  # the unit's data is changed, sizes fixed
    ZERO_OUT = "zero-out"  # the unit's contribution is replaced by zero

    @property
    def sensitivity_factor(self) -> int:
        """Largest change of a sum of clipped contributions, in units of the clip norm."""
        return 2 if self is Adjacency.REPLACE else 1


class Trust(StrEnum):
    """The parties that may see data before noise is added.

    `CENTRAL`: a trusted aggregator, which adds the noise; others see released models.
    `DISTRIBUTED`: nobody; an untrusted server sees a secure sum of noisy shares.
    `LOCAL`: nobody; every single upload is already private.
    """

    LOCAL = "local"  # nobody: every upload is already private
    DISTRIBUTED = "distributed"  # an untrusted server sees a secure sum of noisy shares
    CENTRAL = "central"  # a trusted aggregator adds the noise; others see released models


class Arithmetic(StrEnum):
    """The numbers in which a noisy sum was computed.

    `EXACT`: integers, with an exact sampler. `IDEALISED`: floating point, treated as if it were
    real numbers, and never certified.
    """

    EXACT = "exact"  # integers on a grid, exact sampler
    IDEALISED = "idealised"  # floating point, treated as real numbers


class Entropy(StrEnum):
    """The source of the protective noise."""

    SYSTEM = "system"  # the operating system
    SEEDED = "seeded"  # a repeatable generator: simulation only
