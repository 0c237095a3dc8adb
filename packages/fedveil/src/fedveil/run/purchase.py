"""What was bought before there is a run directory, written down before it is.

Noisy statistics of a table come before the plan that has them in its ledger. Until then, and if it
never comes to that, a ledger of their own says what they cost.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from fedveil.core.files import sync_directory, write_atomically
from fedveil.core.units import Adjacency, Entropy, Unit
from fedveil.data.dp_schema import Bought
from fedveil.privacy.ledger import Header, Ledger
from fedveil.privacy.releases import PrivacyModel
from fedveil.run.evidence import LEDGER, PROMISE

_SUFFIX = ".bought"


class Purchase:
    """A purchase for the run that will be in `run`: its ledger is in a folder beside it."""

    def __init__(self, run: Path) -> None:
        self.path = run.with_name(f"{run.name}{_SUFFIX}")
        number = 1
        while self.path.exists():  # an earlier one that came to nothing counts as well
            number += 1
            self.path = run.with_name(f"{run.name}{_SUFFIX}-{number}")
        self.open = False

    def __call__(self, bought: Bought, *, delta: float) -> None:
        """Write down what is about to be released. Seeded noise releases nothing."""
        if bought.entropy is Entropy.SEEDED:
            return
        adjacency = Adjacency.ZERO_OUT if bought.unit is Unit.CLIENT else Adjacency.REPLACE
        model = PrivacyModel(bought.unit, adjacency, bought.trust)
        partial = self.path.with_name(f".{self.path.name}.partial-{os.getpid()}")
        try:
            partial.mkdir(parents=True)
            # A header without a recipe says that this is a purchase, and no run.
            ledger = Ledger.create(partial / LEDGER, Header(model, delta, bought.releases, 1))
            ledger.reserve(0)
            document = json.dumps(ledger.guarantee().to_dict(), indent=2) + "\n"
            write_atomically(partial / PROMISE, document.encode())
            partial.rename(self.path)
        except BaseException:  # nothing has been released yet
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.open = True
        sync_directory(self.path.parent)

    def settle(self) -> None:
        """The run's own ledger has it now."""
        if self.open:
            shutil.rmtree(self.path)
            self.open = False
