"""What is shown of a finished round: released values, and in a simulation what lies behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedveil.core.display import Displayed
from fedveil.run.evaluation import Metrics
from fedveil.training.client.update_pipeline import Block


@dataclass(frozen=True)
class UnprotectedStats:
    """What a simulation may show of a round and a protected run may not: values without noise."""

    cohort: int
    loss: float  # mean over the cohort of the local training loss
    norm: float  # median update norm before clipping
    clipped: float  # share of updates that clipping shortened
    rejected: int  # updates that were not finite and counted as zero


def unprotected_stats_of(result: Block) -> UnprotectedStats:
    cohort = len(result.norms)
    if cohort == 0:
        return UnprotectedStats(0, float("nan"), float("nan"), 0.0, 0)
    # In numpy: of so few numbers the calls are what takes time.
    norms, losses = result.norms.numpy(), result.losses.numpy()
    shortened = result.shaped_norms.numpy() < norms * np.float32(1 - 1e-6)
    loss = float(np.add.reduce(losses, dtype=np.float64)) / cohort
    middle = (cohort - 1) // 2
    ordered = norms.copy()
    ordered.partition(middle)
    norm = float(ordered[middle])
    if loss != loss or np.isnan(np.maximum.reduce(norms)):  # some clients have none
        loss, norm = float(result.losses.nanmean()), float(result.norms.nanmedian())
    return UnprotectedStats(
        cohort=cohort,
        loss=loss,
        norm=norm,
        clipped=int(np.count_nonzero(shortened)) / cohort,
        rejected=result.rejected,
    )


@dataclass(frozen=True)
class RoundDropouts:
    """Who came to a round. Under a secure sum its server sees this in any case."""

    cohort: int
    survivors: int
    not_released: str = ""  # why the round gave no sum; empty if it did

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"cohort": self.cohort, "survivors": self.survivors}
        return document | ({"not_released": self.not_released} if self.not_released else {})

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RoundDropouts:
        reason = str(document.get("not_released", ""))
        return cls(int(document["cohort"]), int(document["survivors"]), reason)


@dataclass(frozen=True, repr=False)
class RoundReport(Displayed):
    """What may be shown of one finished round.

    round_number: counted from 1.
    seconds: it took; None in a protected run, where the time would betray the size of the cohort.
    epsilon_so_far: of all rounds begun, had their number been fixed before.
    metrics: of the new weights on the test examples; None in rounds that were not evaluated.
    unprotected_stats: losses and norms of clients, without noise; simulations only.
    figures: released beside the update and accounted for, such as an adaptive clip norm.
    dropouts: who came to a secure sum; None without one.
    """

    round_number: int  # from 1
    seconds: float | None  # simulations only: the time betrays the size of the cohort
    epsilon_so_far: float | None  # of all rounds begun, had their number been fixed before
    metrics: Metrics | None  # of the new weights on the test examples, at the chosen interval
    unprotected_stats: UnprotectedStats | None  # simulations only
    figures: Mapping[str, float]  # released beside the update, and accounted for
    dropouts: RoundDropouts | None = None  # of a secure sum, which shows them to its server anyway

    def _display(self) -> tuple[str, dict[str, object]]:
        metrics = self.metrics
        return str(self.round_number), {
            "loss": None if metrics is None else metrics.loss,
            "accuracy": None if metrics is None else metrics.accuracy,
            "epsilon so far": self.epsilon_so_far,
            **self.figures,
            "seconds": self.seconds,
        }

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"round": self.round_number}
        if self.seconds is not None:
            document["seconds"] = round(self.seconds, 6)
        if self.metrics is not None:
            document |= asdict(self.metrics)
            document["epsilon_so_far"] = self.epsilon_so_far
        document |= self.figures
        if self.dropouts is not None:
            document["dropouts"] = self.dropouts.to_dict()
        if self.unprotected_stats is not None:
            document["unprotected_stats"] = asdict(self.unprotected_stats)
        return document
