"""What cannot be run cannot be planned: every round's clip, grid and noise, and the server's step,
tried beforehand.

A round that fails after it was reserved has been spent for nothing. Rates, clips and grids change
from round to round, so the first one says little about the last.
"""

from __future__ import annotations

import torch

from fedveil.core.errors import ConfigError
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import Bounded, NoiseContext, NoisePlacement
from fedveil.privacy.clipping import Clip
from fedveil.privacy.noise.integers import LARGEST, SMALLEST_ROUNDED
from fedveil.training.client.local_training import Schedule
from fedveil.training.server.optimizers import Optimizer

_FINEST = 2.0**-126  # below it single-precision numbers lose digits


def check_every_round(method: Method, noise: NoisePlacement) -> None:
    """Raise a ConfigError if any round of the plan could not be run as it is accounted."""
    rule, rate = noise.facts.rule, method.local.learning_rate
    by_rate = rule.follows_rate or noise.bounded is Bounded.GRADIENT
    alike = not by_rate or rate.schedule is Schedule.CONSTANT
    for number in range(1 if alike else method.rounds):
        if by_rate and not min(rate.of_round(number, 1)) > 0:
            raise ConfigError(
                f"training.decay: the {rate.schedule} schedule reaches rate zero in round "
                f"{number + 1} of {method.rounds}, and noise that follows the rate ends there; use "
                "a longer decay or fewer rounds"
            )
        _check(noise, rule.clip(method.local, number, {}), number)
    for clip in rule.clips():
        _check(noise, clip, 0)
    if noise.count is not None:
        _check(noise.count, None, 0)
    if method.voting is None:
        _try_server(method, noise.server or method.optimizer, noise.facts)


def _try_server(method: Method, optimizer: Optimizer, context: NoiseContext) -> None:
    """The server's steps of the first and the last round, on an update of zeros."""
    start = torch.zeros(context.layout.size)
    sent = context.pipeline.statistic
    update = start if sent is None else torch.zeros(sent.width)
    try:
        if method.smoothing is not None:
            update, _ = method.smoothing.step(update, context.layout, 1.0, {})
        state = optimizer.start(start)
        for number in (0, method.rounds - 1):
            _, state = optimizer.step(start, update, state, number)
    except (ArithmeticError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"server: its step fails, so that every round would be spent for nothing: {error}"
        ) from None


def _check(noise: NoisePlacement, clip: Clip | None, number: int) -> None:
    where = f"round {number + 1}" if clip is None else f"round {number + 1}, clip {clip.norm:.3g}"
    this_round = noise.at(clip, number)
    _ = this_round.integers  # may be refused
    steps, grid = noise.noise_steps(this_round), this_round.grid
    if steps is not None and not SMALLEST_ROUNDED <= steps <= LARGEST:
        raise ConfigError(
            f"privacy.noise_multiplier: noise of {steps:.3g} grid steps cannot be drawn exactly "
            f"({where}); use a number nearer to one"
        )
    if grid is not None and grid < _FINEST:
        raise ConfigError(
            f"training.learning_rate, privacy.clip_norm: {where} needs a grid finer than single "
            "precision; use larger ones, or a longer decay"
        )
