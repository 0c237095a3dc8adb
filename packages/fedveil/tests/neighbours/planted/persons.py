"""Bugs by which a person is more, or less, than all of its records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from fedveil.data import federation, holdout
from fedveil.data.assignment import Assignment
from fedveil.training.engines.pieces import OfPersons
from fedveil.training.engines.records import PersonBatch

from ..cases import Case
from .registry import plant


def _persons(case: Case) -> bool:
    return case.persons


def _held_out(case: Case) -> bool:
    return case.persons and case.path != "direct"


@plant(200, _held_out)
def person_cut_across_hold_out_and_training() -> Any:
    """Rows are held out one by one: those of a person decide which ones of others are."""
    real = holdout.deal

    def deal(labels: Any, owners: Any, partition: Any, kind: Any, **given: Any) -> Any:
        if given.get("persons") is None or not given["test"]:
            return real(labels, owners, partition, kind, **given)
        whole = real(labels, owners, partition, kind, **{**given, "test": 0.0, "validation": 0.0})
        train: Assignment = whole.train
        part = holdout.parts_of(train, kind, given["test"], given["validation"], given["seed"])
        test, kept = train.rows[part == holdout.TEST], train.keep(part == holdout.TRAIN)
        return replace(whole, train=kept, test=test, from_clients=True)

    return patch.object(federation, "deal", deal)


@plant(200, _persons)
def person_clipped_by_row() -> Any:
    """Each record's gradient is clipped, and all of a person's are added up."""
    real = OfPersons.__call__

    def by_row(self: OfPersons, weights: Any, batch: PersonBatch, *args: Any) -> Any:
        alone = np.ones(int(batch.counts.sum()), np.int64)
        return real(self, weights, batch._replace(counts=alone), *args)

    return patch.object(OfPersons, "__call__", by_row)
