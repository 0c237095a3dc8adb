"""Bugs in what is bought before a run."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from fedveil.data import dp_schema
from fedveil.privacy.ledger import read
from fedveil.run import directory, guarantees

from ..whole import Job
from .registry import plant


def _buys_names(job: Job) -> bool:
    return job.command == "run" and job.known == "bought" and job.sheet.classes > 0


@plant(60, _buys_names, among="jobs", near=284)
def noise_on_names_that_nobody_named() -> Any:
    """A unit has a hundred values and votes for twenty: the others get noise as well."""
    real = dp_schema.spread_votes

    def spread(values: Any, voters: Any, most: int, separator: str | None = None) -> Any:
        names, votes = real(values, voters, most, separator)
        text = {str(one) for one in values.to_pylist() if one is not None}
        more = sorted(text - set(names)) if separator is None else []
        return [*names, *more], np.concatenate([votes, np.zeros(len(more), np.int64)])

    return patch.object(dp_schema, "spread_votes", spread)


@plant(120, lambda job: job.command == "run" and job.known == "bought", among="jobs", near=68)
def purchases_are_believed() -> Any:
    """The ledger of a purchase is read, and compared with nothing."""
    return patch.object(guarantees, "examined", lambda path: read(path / directory.LEDGER))
