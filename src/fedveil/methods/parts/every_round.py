"""What cannot be run cannot be planned: every round's clip, grid and noise, tried beforehand.

A round that fails after it was reserved has been spent for nothing. Rates, clips and grids change
from round to round, so the first one says little about the last.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedveil.client.local_training import Schedule
from fedveil.core.errors import BadInput
from fedveil.methods.parts.adaptive_clipping import ClipTracking, StepBound
from fedveil.methods.parts.gradient_noise import GradientNoise
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import InShares, Protection, Terms
from fedveil.privacy.clipping import Clip
from fedveil.privacy.noise.rounded import LARGEST_SPREAD, SMALLEST_SPREAD

_FINEST = 2.0**-126  # below it single-precision numbers lose digits


def check_every_round(method: Method, protection: Protection, terms: Terms) -> None:
    """Raise BadInput if any round of the plan could not be run as it is accounted."""
    rule = method.clip_rule
    for number, clip in _rounds(method, protection, terms):
        _check(protection, terms, clip, number)
    if isinstance(rule, ClipTracking):
        for clip in rule.clips():
            _check(protection, terms, clip, 0)
        _check(protection, rule.bit_terms(protection, terms), None, 0)


def _rounds(
    method: Method, protection: Protection, terms: Terms
) -> Iterator[tuple[int, Clip | None]]:
    """The rounds that differ, and their clips, tracked ones left out."""
    rule, rate = method.clip_rule, method.local.learning_rate
    by_rate = isinstance(rule, StepBound) or isinstance(protection, GradientNoise)
    alike = not by_rate or rate.schedule is Schedule.CONSTANT
    for number in range(1 if alike else method.rounds):
        if by_rate and not min(rate.of_round(number, 1)) > 0:
            raise BadInput(
                f"training.decay: the {rate.schedule} schedule reaches rate zero in round "
                f"{number + 1} of {method.rounds}, and noise that follows the rate ends there; use "
                "a longer decay or fewer rounds"
            )
        clip = terms.shaping.clip
        if isinstance(rule, StepBound):
            clip = rule.clip(method.local, number, {})
        yield number, clip


def _check(protection: Protection, terms: Terms, clip: Clip | None, number: int) -> None:
    where = f"round {number + 1}" if clip is None else f"round {number + 1}, clip {clip.norm:.3g}"
    shaping = protection.shaping(terms, clip, number)
    if isinstance(protection, InShares):
        protection.integers(terms, shaping, number)
    steps = protection.noise_steps(terms, shaping, number)
    if steps is not None and not SMALLEST_SPREAD <= steps <= LARGEST_SPREAD:
        raise BadInput(
            f"privacy.noise_multiplier: noise of {steps:.3g} grid steps cannot be drawn exactly "
            f"({where}); use a number nearer to one"
        )
    if shaping.granularity is not None and shaping.granularity < _FINEST:
        raise BadInput(
            f"training.learning_rate, privacy.clip_norm: {where} needs a grid finer than single "
            "precision; use larger ones, or a longer decay"
        )
