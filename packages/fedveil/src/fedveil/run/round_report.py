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
    """Values without noise that a simulation may show of a round, and a protected run may not.

    Attributes:
        cohort: Clients that took part.
        loss: Mean over the cohort of the local training loss.
        norm: Median update norm before clipping.
        clipped: Share of updates that clipping shortened.
        rejected: Updates that were not finite and counted as zero.
    """

    cohort: int
    loss: float
    norm: float
    clipped: float
    rejected: int


def unprotected_stats_of(result: Block) -> UnprotectedStats:
    cohort = len(result.norms)
    if cohort == 0:
        return UnprotectedStats(0, float("nan"), float("nan"), 0.0, 0)
    norms, losses = result.norms.numpy(), result.losses.numpy()
    shortened = result.shaped_norms.numpy() < norms * np.float32(1 - 1e-6)
    # Some clients may have no loss or norm. The lower of two medians, as in torch.
    norms, losses = np.sort(norms[~np.isnan(norms)]), losses[~np.isnan(losses)]
    return UnprotectedStats(
        cohort=cohort,
        loss=float(losses.mean(dtype=np.float64)) if len(losses) else float("nan"),
        norm=float(norms[(len(norms) - 1) // 2]) if len(norms) else float("nan"),
        clipped=int(np.count_nonzero(shortened)) / cohort,
        rejected=result.rejected,
    )


@dataclass(frozen=True)
class RoundDropouts:
    """The participants of a round. The server of a secure sum sees them in any case.

    Attributes:
        cohort: How many were drawn.
        survivors: How many are in the sum.
        not_released: Why the round gave no sum; empty if it did.
    """

    cohort: int
    survivors: int
    not_released: str = ""


@dataclass(frozen=True, repr=False)
class RoundReport(Displayed):
    """The public part of a finished round.

    Attributes:
        round_number: Counted from 1.
        seconds: Time it took; None in a protected run, where it would reveal the size of the
            cohort.
        epsilon_so_far: Of all rounds begun, if their number had been fixed before.
        metrics: Of the new weights on the test examples; None in rounds that were not evaluated.
        unprotected_stats: Losses and norms of clients, without noise; simulations only.
        figures: Released beside the update and accounted for, such as an adaptive clip norm.
        dropouts: Participants of a secure sum; None without one.
    """

    round_number: int
    seconds: float | None
    epsilon_so_far: float | None
    metrics: Metrics | None
    unprotected_stats: UnprotectedStats | None
    figures: Mapping[str, float]
    dropouts: RoundDropouts | None = None

    def _display(self) -> tuple[str, dict[str, object]]:
        document = self.to_dict()
        names = ("loss", "accuracy", "epsilon_so_far", *self.figures, "seconds")
        return str(self.round_number), {
            name.replace("_", " ") if name == "epsilon_so_far" else name: document.get(name)
            for name in names
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
