"""What cannot be run cannot be planned: every round's clip, grid and noise, and the server's step,
tried beforehand.

A round that fails after it was reserved has been spent for nothing. Rates, clips and grids change
from round to round, so the first one says little about the last.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedveil.core.errors import ConfigError
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping, StepBound
from fedveil.methods.parts.gradient_noise import GradientNoise
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import (
    NoiseContext,
    NoisePlacement,
    RoundNoise,
    SecureNoisePlacement,
    StatisticNoise,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.noise.integers import LARGEST, SMALLEST_ROUNDED
from fedveil.training.client.local_training import Schedule
from fedveil.training.server.optimizers import Optimizer

_FINEST = 2.0**-126  # below it single-precision numbers lose digits


def check_every_round(method: Method, placement: NoisePlacement, context: NoiseContext) -> None:
    """Raise a ConfigError if any round of the plan could not be run as it is accounted."""
    rule = method.clip_rule
    for number, clip in _rounds(method, placement, context):
        _check(placement, context, clip, number)
    if isinstance(rule, AdaptiveClipping):
        for clip in rule.clips():
            _check(placement, context, clip, 0)
        _check(placement, rule.bit_terms(placement, context), None, 0)
    if method.voting is None:
        optimizer = method.optimizer
        if isinstance(placement, StatisticNoise):
            optimizer = placement.server(context)
        _try_server(method, optimizer, context)


def _try_server(method: Method, optimizer: Optimizer, context: NoiseContext) -> None:
    """The server's steps of the first and the last round, on an update of zeros."""
    start = torch.zeros(context.layout.size)
    sent = context.pipeline.statistic
    update = start if sent is None else torch.zeros(sent.width)
    try:
        if method.smoothing is not None:
            update = method.smoothing(update, context.layout)
        state = optimizer.start(start)
        for number in (0, method.rounds - 1):
            _, state = optimizer.step(start, update, state, number)
    except (ArithmeticError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"server: its step fails, so that every round would be spent for nothing: {error}"
        ) from None


def _rounds(
    method: Method, placement: NoisePlacement, context: NoiseContext
) -> Iterator[tuple[int, Clip | None]]:
    """The rounds that differ, and their clips, tracked ones left out."""
    rule, rate = method.clip_rule, method.local.learning_rate
    by_rate = isinstance(rule, StepBound) or isinstance(placement, GradientNoise)
    alike = not by_rate or rate.schedule is Schedule.CONSTANT
    for number in range(1 if alike else method.rounds):
        if by_rate and not min(rate.of_round(number, 1)) > 0:
            raise ConfigError(
                f"training.decay: the {rate.schedule} schedule reaches rate zero in round "
                f"{number + 1} of {method.rounds}, and noise that follows the rate ends there; use "
                "a longer decay or fewer rounds"
            )
        clip = context.pipeline.clip
        if isinstance(rule, StepBound):
            clip = rule.clip(method.local, number, {})
        yield number, clip


def _check(
    placement: NoisePlacement, context: NoiseContext, clip: Clip | None, number: int
) -> None:
    where = f"round {number + 1}" if clip is None else f"round {number + 1}, clip {clip.norm:.3g}"
    pipeline = placement.pipeline(context, clip, number)
    at = RoundNoise(context, pipeline, number)
    if isinstance(placement, SecureNoisePlacement):
        placement.integers(at)
    steps = placement.noise_steps(at)
    if steps is not None and not SMALLEST_ROUNDED <= steps <= LARGEST:
        raise ConfigError(
            f"privacy.noise_multiplier: noise of {steps:.3g} grid steps cannot be drawn exactly "
            f"({where}); use a number nearer to one"
        )
    if pipeline.granularity is not None and pipeline.granularity < _FINEST:
        raise ConfigError(
            f"training.learning_rate, privacy.clip_norm: {where} needs a grid finer than single "
            "precision; use larger ones, or a longer decay"
        )
