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
    norms, losses = result.norms.numpy(), result.losses.numpy()
    shortened = result.shaped_norms.numpy() < norms * np.float32(1 - 1e-6)
    # Some clients may have no loss or norm. The lower of two medians, as in torch.
    known, told = np.sort(norms[~np.isnan(norms)]), losses[~np.isnan(losses)]
    return UnprotectedStats(
        cohort=cohort,
        loss=float(told.mean(dtype=np.float64)) if len(told) else float("nan"),
        norm=float(known[(len(known) - 1) // 2]) if len(known) else float("nan"),
        clipped=int(np.count_nonzero(shortened)) / cohort,
        rejected=result.rejected,
    )


@dataclass(frozen=True)
class RoundDropouts:
    """Who came to a round. Under a secure sum its server sees this in any case."""

    cohort: int
    survivors: int
    not_released: str = ""  # why the round gave no sum; empty if it did


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

    round_number: int
    seconds: float | None
    epsilon_so_far: float | None
    metrics: Metrics | None
    unprotected_stats: UnprotectedStats | None
    figures: Mapping[str, float]
    dropouts: RoundDropouts | None = None

    def _display(self) -> tuple[str, dict[str, object]]:
        known = self.to_dict()
        shown = ("loss", "accuracy", "epsilon_so_far", *self.figures, "seconds")
        return str(self.round_number), {
            name.replace("_", " ") if name == "epsilon_so_far" else name: known.get(name)
            for name in shown
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
            dropouts = asdict(self.dropouts)
            document["dropouts"] = {name: value for name, value in dropouts.items() if value != ""}
        if self.unprotected_stats is not None:
            document["unprotected_stats"] = asdict(self.unprotected_stats)
        return document
