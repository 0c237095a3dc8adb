"""TensorFlow Privacy's optimisers and its privacy computation, as of 0.9.0."""

from __future__ import annotations

import math

from fedveil.core.units import Adjacency, Unit
from fedveil.privacy.sampling import Poisson
from fedveil_lab.audit.check.finding import FLOATING_POINT, NOT_FINITE, Finding, Settings, proved

SYSTEM = "TensorFlow Privacy 0.9.0"

_ORDERS = [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512]


def dp_sgd(settings: Settings) -> Finding:
    """Keras' batches, each example once in an epoch, with noise z C on each sum of gradients."""
    z, examples = settings.positive("noise_multiplier"), settings.count("examples")
    batch, epochs = settings.count("batch_size"), settings.positive("epochs")
    delta, steps = settings.positive("delta"), settings.count("gradient_accumulation_steps", 1)
    parts = settings.value("num_microbatches", None)
    grouped = parts is not None and parts != batch
    why = [
        "model.fit shuffles or keeps the order, each example once in an epoch; the claim is for "
        "Poisson batches"
    ]
    if grouped:
        why.append(
            f"{parts} microbatches in a batch of {batch}: one example changes a clipped mean of "
            f"several, and moves the sum by twice the clip (only compute_dp_sgd_privacy_statement "
            f"counts that)"
        )
    if steps > 1:
        z *= math.sqrt(steps)
        why.append(f"{steps} noisy gradients are summed before a step: the noise adds up too")
    times, half = math.ceil(epochs), 2 if grouped else 1
    group = ", microbatches" if grouped else ""
    answer = tuple(
        proved(
            f"one example {change}, its batches known{group}", z / extra, times, delta,
            unit=Unit.RECORD, adjacency=adjacency,
        )
        for change, extra, adjacency in (
            ("zeroed", half, Adjacency.ZERO_OUT),
            ("replaced", 1, Adjacency.REPLACE),
        )
    )  # fmt: skip
    sampled = proved(
        f"not what model.fit does: Poisson batches{group}", z / half,
        math.ceil(epochs * examples / batch), delta,
        unit=Unit.RECORD, adjacency=Adjacency.ZERO_OUT, sampling=Poisson(batch / examples),
    )  # fmt: skip
    return Finding(
        SYSTEM, "", "", settings.table(), "compute_dp_sgd_privacy: Poisson batches (RDP)",
        _their_rdp(z, examples, batch, epochs, delta), delta, (*answer, sampled), tuple(why),
        (FLOATING_POINT, NOT_FINITE),
    )  # fmt: skip


def _their_rdp(z: float, examples: int, batch: int, epochs: float, delta: float) -> float:
    """`compute_dp_sgd_privacy`, with its orders."""
    from dp_accounting import dp_event, rdp

    event = dp_event.PoissonSampledDpEvent(batch / examples, dp_event.GaussianDpEvent(z))
    steps = math.ceil(epochs * examples / batch)
    return float(rdp.RdpAccountant(_ORDERS).compose(event, steps).get_epsilon(delta))
