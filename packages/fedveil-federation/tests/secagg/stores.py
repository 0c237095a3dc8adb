"""Device stores and privacy terms for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import Everyone
from fedveil_federation.secagg.device_store import DeviceStore, Lock
from fedveil_federation.secagg.privacy_terms import PrivacyTerms

LOCK = Lock(bytes(32))
DELTA = 1e-6


def new_store(path: Path, budget: float = 1e3, **terms: Any) -> DeviceStore:
    return DeviceStore.create(path, LOCK, budget_epsilon=budget, delta=DELTA, **terms)


def terms_for(cohort: int = 3, dimension: int = 5, **changed: Any) -> PrivacyTerms:
    """One round of discrete noise shares of std 4 on vectors of norm 10."""
    mechanism = DiscreteGaussianSum(10.0, 1.0, 4.0, cohort, dimension, None)
    model = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.DISTRIBUTED, population=100)
    return PrivacyTerms(
        Release(changed.pop("mechanism", mechanism), Everyone(), changed.pop("rounds", 1)),
        changed.pop("privacy_model", model),
        changed.pop("run", "run"),
    )
