"""What a simulation shows of a round's clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.engines.contract import RoundSum


@dataclass(frozen=True)
class UnprotectedStats:
    """What a simulation may show of a round and a protected run may not: values without noise."""

    cohort: int
    loss: float  # mean over the cohort of the local training loss
    norm: float  # median update norm before clipping
    clipped: float  # share of updates that clipping shortened
    rejected: int  # updates that were not finite and counted as zero


def unprotected_stats_of(result: RoundSum) -> UnprotectedStats:
    cohort = len(result.norms)
    if cohort == 0:
        return UnprotectedStats(0, float("nan"), float("nan"), 0.0, 0)
    # In numpy: of so few numbers the calls are what takes time.
    norms, losses = result.norms.numpy(), result.losses.numpy()
    shortened = result.shaped_norms.numpy() < norms * np.float32(1 - 1e-6)
    loss = float(np.add.reduce(losses, dtype=np.float64)) / cohort
    middle = (cohort - 1) // 2
    norm = float(np.partition(norms, middle)[middle])
    if loss != loss or np.isnan(norms).any():  # some clients have none
        loss, norm = float(result.losses.nanmean()), float(result.norms.nanmedian())
    return UnprotectedStats(
        cohort=cohort,
        loss=loss,
        norm=norm,
        clipped=int(np.count_nonzero(shortened)) / cohort,
        rejected=result.rejected,
    )
