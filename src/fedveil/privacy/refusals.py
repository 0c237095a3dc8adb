"""Combinations for which no proof exists. Each kind has its own error, so that callers can tell.

The first part are the errors that accounting itself raises. The second part are checks of facts
that accounting cannot see, because they are about how training is done: a method, an engine or a
recipe states the fact, and gets a Refused that says why and what would work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fedveil.errors import Refused
from fedveil.privacy.units import Adjacency, Trust, Unit


class AmplificationRefused(Refused):
    """Sampling credit towards somebody who learns the cohort."""


class AdjacencyRefused(Refused):
    """A neighbouring relation that the sampler's or the trust's proof does not cover."""


class HonestSharesRefused(Refused):
    """Not one honest noise share is sure to be in the sum."""


class DeltaRefused(Refused):
    """A delta that publishing one random unit would meet."""


class MechanismRefused(Refused):
    """A mechanism that cannot be run, or proved, under this trust or sampling."""


class GradientRefused(Refused):
    """A certificate for noisy gradients that its conditions do not support."""


class UnitRefused(Refused):
    """A promise for one unit that was proved for another."""


class SensitivityRefused(Refused):
    """A sensitivity smaller than what one unit can do."""


class UploadRefused(Refused):
    """An upload that shows what its noise does not cover."""


class ReuseRefused(Refused):
    """Noise drawn again, shared or kept where it must not be."""


class PrivateInputRefused(Refused):
    """A number inside the proof that was computed from private data."""


def check_denominator(*, amplified: bool, realised_cohort: bool) -> None:
    """A sum may be divided by the public expected cohort only, if sampling is to have credit."""
    if amplified and realised_cohort:
        raise AmplificationRefused(
            "dividing by the realised cohort shows its size through the scale of the noise",
            "divide by the expected cohort, or give up the credit for sampling",
        )


def check_cohort_secrecy(
    *, amplified: bool, published: Iterable[str] = (), skips_small_cohorts: bool = False
) -> None:
    """Nothing about the draw may leave: `published` names what does (seed, cohort, size, ...)."""
    shown = sorted(published)
    if amplified and shown:
        raise AmplificationRefused(
            f"{', '.join(shown)} of the sampling published or logged: the sample is no secret",
            "keep it secret, or count participations instead",
        )
    if amplified and skips_small_cohorts:
        raise AmplificationRefused(
            "skipping or redrawing empty or small cohorts changes the law of the sample",
            "release noise alone for an empty cohort",
        )


def check_participation_count(*, enforced: bool, realised: bool) -> None:
    """A participation count in a proof is a hard cap or a realised maximum, never a mean."""
    if not (enforced or realised):
        raise UnitRefused(
            "an expected number of participations is no bound for the client that is drawn most",
            "enforce a cap at every client, or report realised counts",
        )


def check_unit(*, proved: Unit, reported: Unit) -> None:
    """Client level covers record level; the other way round proves nothing useful."""
    if proved is Unit.RECORD and reported is Unit.CLIENT:
        raise UnitRefused(
            "a record-level epsilon says nothing about a whole client",
            "clip the whole update of a client, or report unit record",
        )


def check_sensitivity(*, claimed: float, clip_norm: float, adjacency: Adjacency) -> None:
    """A clipped contribution moves a sum by its clip, and by twice that when it is replaced."""
    needed = adjacency.sensitivity_factor * clip_norm
    if claimed < needed:
        raise SensitivityRefused(
            f"sensitivity {claimed:g} under {adjacency} with clip {clip_norm:g}: a unit can move "
            f"the sum by {needed:g}",
            f"use {needed:g}",
        )


def check_layer_clipping(*, layer_norms: Sequence[float], sensitivity: float) -> None:
    """Layers clipped one by one have together the root of the sum of their squares."""
    needed = math.sqrt(math.fsum(norm**2 for norm in layer_norms))
    if sensitivity < needed * (1 - 1e-12):
        raise SensitivityRefused(
            f"{len(layer_norms)} layers clipped separately reach {needed:g}, above the accounted "
            f"sensitivity {sensitivity:g}",
            f"account sensitivity {needed:g}, or clip the whole update",
        )


def check_weights(
    *, unit: Unit, adjacency: Adjacency, sizes_leave_client: bool, largest_weight: float
) -> None:
    """Weights are at most one, and sizes stay at home unless they cannot change."""
    if sizes_leave_client and not (unit is Unit.RECORD and adjacency is Adjacency.REPLACE):
        raise UploadRefused(
            f"the number of records of a client is private for unit {unit} under {adjacency}",
            "let the client apply a weight min(n, cap) / cap itself and never send n",
        )
    if not largest_weight <= 1:
        raise SensitivityRefused(
            f"a weight of {largest_weight:g} stretches the clip by as much",
            "use weights min(n, cap) / cap with a public cap, and a fixed denominator",
        )


def check_upload(
    *, noise_on_all_coordinates: bool, mask_leaves_client: bool, unnoised_buffers: bool = False
) -> None:
    """What leaves a client is dense and noisy in every coordinate."""
    if mask_leaves_client:
        raise UploadRefused(
            "a mask or sparse encoding depends on private data and is not covered by the noise",
            "send a dense vector; sparsify before clipping if at all",
        )
    if not noise_on_all_coordinates:
        raise UploadRefused(
            "noise on the kept coordinates only shows which ones were kept",
            "add noise to every coordinate",
        )
    if unnoised_buffers:
        raise UploadRefused(
            "buffers such as running statistics leave without noise",
            "use a model without them, such as one with group normalisation",
        )


def check_rounding(*, trust: Trust, rounded_after_noise: bool) -> None:
    """In a secure sum, vectors are rounded first and discrete noise is added then."""
    if trust is Trust.DISTRIBUTED and rounded_after_noise:
        raise MechanismRefused(
            "the sum of rounded noisy vectors is not a function of the noisy sum",
            "round first, then add discrete Gaussian noise, and account a DiscreteGaussianSum",
        )


def check_per_example_clipping(
    *, couples_examples: bool, copies_clipped_separately: bool = False
) -> None:
    """Per-example clipping bounds a record only if its gradient is its own."""
    if couples_examples:
        raise SensitivityRefused(
            "batch normalisation (or any layer that couples examples) lets one record change the "
            "gradients of all others",
            "use group or layer normalisation",
        )
    if copies_clipped_separately:
        raise SensitivityRefused(
            "copies of a record clipped one by one let it count more than once in a batch",
            "average the copies of a record before clipping",
        )


def check_adaptive_clipping(*, from_released_values: bool) -> None:
    """A clip norm that follows the data follows a noisy quantile."""
    if not from_released_values:
        raise PrivateInputRefused(
            "a clip norm chosen from un-noised norms leaks them",
            "release a noisy quantile (quantile_noise_multiplier) and account it with the model",
        )


def check_sources(private: Mapping[str, bool]) -> None:
    """Learning rates, step counts, clip levels and constants in a proof are public."""
    bad = sorted(name for name, is_private in private.items() if is_private)
    if bad:
        raise PrivateInputRefused(
            f"{', '.join(bad)} computed from private data inside a sensitivity or a bound",
            "take them from public or proxy data, or release them with noise and account that",
        )


def check_private_metrics(*, shown: Iterable[str], accounted: Iterable[str] = ()) -> None:
    """Stopping rules, logs and validation scores on private data are releases."""
    free = sorted(set(shown) - set(accounted))
    if free:
        raise UploadRefused(
            f"{', '.join(free)} on private data would leave without being accounted",
            "add noise and account it, use public data, or keep it with the client",
        )


def check_redraw(*, may_have_left: bool, counted_again: bool) -> None:
    """A second draw of noise for the same round is a second release."""
    if may_have_left and not counted_again:
        raise ReuseRefused(
            "new noise for a round whose result may have left averages the noise away",
            "send the stored noisy result again, or count the round twice",
        )


def check_noise_seeds(seeds: Sequence[object]) -> None:
    """No two runs, and no two cohorts, share their noise."""
    if len(set(seeds)) < len(seeds):
        raise ReuseRefused(
            "two runs share a noise seed, so subtracting their results removes the noise",
            "draw every run's noise from the operating system",
        )


def check_stored(names: Iterable[str]) -> None:
    """What a protected run may not write down, whether in a checkpoint or in a log."""
    secret = {"un-noised sum", "update norm", "loss", "seed", "cohort", "cohort size"}
    found = sorted(secret & set(names))
    if found:
        raise ReuseRefused(
            f"{', '.join(found)} in a checkpoint or log of a protected run",
            "store released values only",
        )
