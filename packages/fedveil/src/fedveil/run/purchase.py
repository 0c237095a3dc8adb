"""What was bought before there is a run directory, written down before it is.

Noisy statistics of a table come before the plan that has them in its ledger. Until then, and if it
never comes to that, a ledger of their own says what they cost.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Entropy, Trust, Unit
from fedveil.data.declared import CLASS_NAMES
from fedveil.data.dp_schema import (
    FEW,
    MISSED,
    Bought,
    Offer,
    Statistics,
    affordable,
    releases_of,
)
from fedveil.data.public_facts import public_facts
from fedveil.data.table import table_statistics
from fedveil.planning.plan import Budget
from fedveil.privacy.accountants.exact import gaussian_noise
from fedveil.privacy.accounting import account
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.ledger import Header, Ledger, read
from fedveil.privacy.releases import PrivacyModel
from fedveil.run.directory import LEDGER, PROMISE, free_path, new_folder, write_json


class Purchase:
    """A purchase for the run that will be in `run`: its ledger is in a folder beside it."""

    def __init__(self, run: Path) -> None:
        self.path = free_path(run.with_name(f"{run.name}.bought"))  # an earlier one counts as well
        self.open = False

    def __call__(self, bought: Bought, *, delta: float) -> None:
        """Write down what is about to be released. Seeded noise releases nothing."""
        if bought.entropy is not Entropy.SEEDED:
            write_ledger(self.path, bought, delta)
            self.open = True

    def settle(self) -> None:
        """The run's own ledger has it now."""
        if self.open:
            shutil.rmtree(self.path)
            self.open = False


def write_ledger(folder: Path, bought: Bought, delta: float) -> None:
    """Make a new folder with a ledger of the statistics that are about to be released.

    Args:
        folder: A new folder; it appears whole or not at all.
        bought: The releases, and whom they protect.
        delta: Of the guarantee.
    """
    with new_folder(folder) as partial:
        # A header without a recipe says that this is a purchase, and no run.
        model = _privacy_model(bought.unit, bought.trust)
        if bought.labels_read:
            model = replace(model, unprotected=(CLASS_NAMES,))
        header = Header(model, delta, bought.releases, 1)
        ledger = Ledger.create(partial / LEDGER, header)
        ledger.reserve(0)
        write_json(partial / PROMISE, ledger.guarantee().to_dict())


def _privacy_model(unit: Unit, trust: Trust) -> PrivacyModel:
    adjacency = Adjacency.ZERO_OUT if unit is Unit.CLIENT else Adjacency.REPLACE
    return PrivacyModel(unit, adjacency, trust, contributions=1 if unit is Unit.PERSON else None)


def buy_statistics(
    path: Path,
    folder: Path,
    *,
    epsilon: float,
    delta: float | None = None,
    unit: Unit | None = None,
    client_column: str | None = None,
    person_column: str | None = None,
    label: str | None = None,
) -> tuple[Statistics, Guarantee]:
    """Spend a whole budget on statistics of a table.

    Whom to protect, and with how much noise, follows from public facts (`data.public_facts`). What
    is released is written to a ledger before it is, as of a run.

    Args:
        path: A CSV or Parquet file, or a folder or a pattern of them.
        folder: A new folder for the ledger.
        epsilon: The budget.
        delta: Its small probability; None: min(1e-5, units^-1.1).
        unit: Protect single rows, persons or whole clients; None: clients, if there are enough to
            hide in, or else persons, if there is a column of them.
        client_column: The column that names the clients; None: all rows are one owner's.
        person_column: The column that names the persons; their rows count at one client each.
        label: A column whose classes are named, if it holds classes.

    Returns:
        The statistics, and what is guaranteed.

    Raises:
        ConfigError: If there are too few rows or clients to tell anything from the noise, or the
            folder exists. Nothing is spent then.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: exists already; name a new folder")
    if unit is Unit.CLIENT and client_column is None:
        raise ConfigError(
            f"{path}: whose rows are protected together? Name the column that says it "
            "(--client-column)."
        )
    facts, alone = public_facts(path, client_column, person_column), Unit.RECORD
    if person_column is not None:
        alone = Unit.PERSON
    unit = unit or (Unit.CLIENT if facts.clients >= FEW else alone)
    trust = Trust.CENTRAL
    if unit is not Unit.CLIENT:
        trust = Trust.LOCAL if facts.clients == 1 else Trust.DISTRIBUTED
    units = facts.units(unit)
    budget = Budget(epsilon, delta)
    delta = budget.resolved_delta(units)
    model, width = _privacy_model(unit, trust), len(facts.columns)
    names_classes = label is not None and trust is not Trust.DISTRIBUTED
    one = gaussian_noise(epsilon, (1 - MISSED) * delta)
    noise = one * math.sqrt(3 if names_classes else 2)
    while True:  # noise and epsilon are nearly inverse: two or three steps
        offer = Offer(unit, trust, noise, MISSED * delta, facts.clients)
        releases = releases_of(offer, width, names_classes=names_classes)
        spent = account(releases, privacy_model=model, delta=delta).epsilon
        if spent <= epsilon:
            break
        noise *= 1.001 * max(1.0, spent / epsilon)
    if not affordable(offer, units, width):
        raise ConfigError(
            f"{path}: {units:,} {unit}s are too few to tell their statistics from the noise. Raise "
            "--epsilon, or leave columns out of the file."
        )

    def pay(bought: Bought) -> None:
        spent = account(bought.releases, privacy_model=model, delta=delta).epsilon
        if spent > epsilon:
            raise PrivacyRefusal(
                f"these statistics would cost epsilon {spent:g}", "raise --epsilon"
            )
        write_ledger(folder, bought, delta)

    statistics = table_statistics(
        path,
        replace(offer, pay=pay),
        label=label,
        client_column=client_column,
        person_column=person_column,
    )
    return statistics, read(folder / LEDGER).guarantee()
