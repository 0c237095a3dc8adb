"""Settings of the whole test suite."""

import os

import pytest
from hypothesis import settings

# No test asserts a wall-clock time: a busy machine is not a defect.
settings.register_profile("fedveil", deadline=None)
settings.load_profile("fedveil")


# Every setting that a table without a recipe would be searched for.
TUNED = ["--unit", "client", "--set", "training.learning_rate=0.1", "--set", "privacy.clip_norm=1"]
TUNED += ["--set", "training.local_epochs=5", "--set", "training.rounds=2"]


@pytest.fixture(autouse=True, scope="session")
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Notes about ledgers go where the tests' runs are, not into the user's home."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
