"""Where single records are protected, a site must treat them one by one before they train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.deploy.world import LOCK, World, facts_of, recipe_of, world

from fedveil.core.errors import PrivacyRefusal
from fedveil.core.units import Unit
from fedveil.data.federation import Federation, Scaling
from fedveil.training.engines.isolated import isolated_federation
from fedveil_federation.deploy.guard import Guard
from fedveil_federation.secagg.device_store import DeviceStore

RECORDS = {"training__method": "dp-sgd", "training__local_epochs": None}


class OwnMean(Scaling):
    """Centres whatever rows it is given."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return inputs - inputs.mean(axis=0)


def measured(data: Federation) -> Federation:
    return replace(data, unprotected=("means of 6 columns were taken from the data",))


def centred(data: Federation) -> Federation:
    nothing = np.zeros((), np.float32)
    return replace(data, scaling=OwnMean(nothing, nothing))


def begin(made: World, spoilt: Callable[[Federation], Federation], unit: Unit) -> None:
    """Start a run after one site was given other data."""
    site = "site-1"
    made.courier.detach(site)
    made.guards[site].close()
    store = DeviceStore(made.folder / f"{site}.db", LOCK)
    data = spoilt(isolated_federation(made.data, made.members.number(site)))
    made.guards[site] = Guard(site, made.members, store, made.policy, data)
    made.courier.attach(site, made.guards[site].answer)
    recipe = recipe_of(**RECORDS) if unit is Unit.RECORD else recipe_of()
    made.hub().start(recipe, facts_of(made.data, unit), made.folder / "run")


@pytest.mark.parametrize(
    ("spoilt", "said"), [(measured, "means of 6 columns"), (centred, "OwnMean")]
)
def test_a_site_that_mixes_its_records_promises_nothing_for_one(
    tmp_path: Path, spoilt: Callable[[Federation], Federation], said: str
) -> None:
    """A mean over all rows lets one record move every other record's gradient."""
    made = world(tmp_path, unit=Unit.RECORD)
    try:
        with pytest.raises(PrivacyRefusal, match=said):
            begin(made, spoilt, Unit.RECORD)
    finally:
        made.close()


def test_where_the_whole_site_is_protected_it_may(tmp_path: Path) -> None:
    made = world(tmp_path)
    try:
        begin(made, measured, Unit.CLIENT)
    finally:
        made.close()
