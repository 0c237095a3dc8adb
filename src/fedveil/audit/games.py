"""The game that a guarantee is about, played many times with the program's clip, grid and noise.

A canary is as loud as the clip allows in every round in which it takes part, in one world; in the
other it is silent (zero-out, add-remove) or as loud the other way (replace). Its direction turns
round from round to round, so that noise which is used twice cancels. All else that enters a sum is
known to the adversary.

Noise is drawn for each coordinate by itself, so each coordinate of a vector is a game of its own:
the canary's whole length, as the program's clip and grid leave it, lies on that coordinate alone.
Thousands of games cost a few vectors of noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.client.local_training import GradientClip, LocalTraining
from fedveil.client.steps import local_updates, shorten
from fedveil.client.update_pipeline import Senders, UpdatePipeline, shape_rows
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.gradient_noise import GradientNoise, Proof
from fedveil.methods.parts.local_steps import local_steps, rates
from fedveil.methods.parts.noise_placement import RoundContext, SecureNoisePlacement
from fedveil.methods.parts.noisy_votes import VoteNoise
from fedveil.planning.plan import Plan
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import Laplace
from fedveil.privacy.sampling import FixedSize, Poisson
from fedveil.run.sums import PrivateSum, pipeline_in

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Scores = dict[str, Floats]  # by the name of a statistic; large if the canary seems to be there

_LOUD = 1e6  # how far beyond its clip a canary's update goes


@dataclass(frozen=True)
class View:
    """What the adversary sees of one round, game by game, and what it is told to expect.

    `seen` lies around `loud` if the canary is there and around `quiet` if not; with a secret cohort
    it does so with probability `rate`, and around zero else. `read` marks the games in which the
    rest of the cohort gives away that the canary was drawn, if anything does.
    """

    seen: Floats
    loud: float
    quiet: float
    noise: float
    laplace: bool = False
    rate: float = 1.0
    read: Bools | None = None

    def scores(self) -> Scores:
        loud, quiet = self._against_zero(self.loud), self._against_zero(self.quiet)
        found = {"sum": self.seen * ((self.loud - self.quiet) / self.noise**2)}
        if self.rate < 1:
            found["likelihood"] = self._mixed(loud) - self._mixed(quiet)
        else:
            found["likelihood"] = loud - quiet
        if self.read is not None:
            found["cohort"] = np.where(self.read, loud - quiet, 0.0)
        return found

    def _against_zero(self, mean: float) -> Floats:
        if self.laplace:
            ratio: Floats = (np.abs(self.seen) - np.abs(self.seen - mean)) / self.noise
            return ratio
        return (self.seen * mean - mean**2 / 2) / self.noise**2

    def _mixed(self, ratio: Floats) -> Floats:
        return np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + ratio)


class Game(Protocol):
    """A game with a fixed adversary."""

    most: int  # games that one call may play
    not_tried: tuple[str, ...]

    def views(self, seed: int, there: Bools) -> Iterator[View]:
        """Play one game for each entry of `there`; what is seen, round by round."""
        ...


def play(game: Game, seed: int, there: Bools) -> Scores:
    """Every statistic over all rounds, one value for each game."""
    total: Scores = {}
    for view in game.views(seed, there):
        for name, score in view.scores().items():
            total[name] = total[name] + score if name in total else score
    return total


def game_of(plan: Plan) -> Game:
    """The game that this plan's guarantee is about; refuses what cannot be played yet."""
    guarantee, placement, context = plan.guarantee, plan.method.placement, plan.context
    if guarantee is None or placement is None or context is None:
        raise ConfigError("audit: this method adds no noise and promises nothing")
    if isinstance(placement, VoteNoise) and guarantee.adjacency is Adjacency.REPLACE:
        raise ConfigError("audit: replaced ballots are not audited; use adjacency zero-out")
    if isinstance(placement, GradientNoise):
        return _RecordGame(plan, placement)
    if guarantee.unit is not Unit.CLIENT:
        raise ConfigError(f"audit: {type(placement).__name__} at record level is not audited")
    return _ClientGame(plan)


def _rounds(plan: Plan) -> tuple[int, list[int]]:
    """A client that takes part most often, and the rounds in which it may."""
    release, rounds = plan.releases(plan.method.rounds)[0], plan.method.rounds
    if release.sampling.amplifies:  # secret, or the worst case: drawn every time
        return 0, list(range(rounds))
    cohorts = [plan.sampling.draw(number, None) for number in range(rounds)]  # type: ignore[arg-type]
    counts = np.bincount(np.concatenate(cohorts), minlength=plan.federation.clients)
    canary = int(counts.argmax())
    return canary, [number for number, cohort in enumerate(cohorts) if canary in cohort]


def _other_world(plan: Plan) -> int:
    """What the canary sends in the other world, beside what it sends in the first."""
    if plan.guarantee is None:
        raise ValueError("a game needs a guarantee")
    return -1 if plan.guarantee.adjacency is Adjacency.REPLACE else 0


def _honest(plan: Plan, canary: int) -> npt.NDArray[np.int64]:
    """The clients whose noise shares the adversary does not know, the canary among them."""
    count = plan.guarantee.honest_shares if plan.guarantee is not None else None
    others = [client for client in range(plan.federation.clients) if client != canary]
    return np.array([canary, *others[: (count or 1) - 1]], dtype=np.int64)


class _ClientGame:
    """All that one client sends, on noisy sums, on its own noisy upload, or on masked sums."""

    most = 1000

    def __init__(self, plan: Plan) -> None:
        if plan.context is None or plan.guarantee is None:
            raise ValueError("a game needs a guarantee")
        self._plan, self._context = plan, plan.context
        self._canary, self._numbers = _rounds(plan)
        self._other = _other_world(plan)
        self._secret = plan.releases(1)[0].amplified
        self._local = plan.guarantee.trust is Trust.LOCAL
        self._honest = _honest(plan, self._canary)
        self._state = plan.optimizer.start(plan.start)
        shares = plan.guarantee.honest_shares
        self._share = 1.0 if shares is None else shares / plan.sampling.expected_cohort
        self._lengths: dict[tuple[object, ...], float] = {}
        tracked = isinstance(plan.method.clip_rule, AdaptiveClipping)
        self.not_tried = (
            ("the bits by which a tracked clip moves (the clip was held at its first value)",)
            if tracked
            else ()
        )

    def views(self, seed: int, there: Bools) -> Iterator[View]:
        drawn = self._draw(seed, len(there)) if self._secret else None
        for turn, number in enumerate(self._numbers):
            yield self._view(seed, there, number, (-1) ** turn, drawn)

    def _view(
        self, seed: int, there: Bools, number: int, sign: int, drawn: tuple[Bools, Floats] | None
    ) -> View:
        plan = self._plan
        pipeline = pipeline_in(plan, number, self._state)
        length, step = self._length(pipeline, number), pipeline.granularity or 1.0
        sent = np.where(there, 1.0, self._other)
        known = np.zeros(len(there))
        included, others = np.ones(len(there), np.bool_), known
        if drawn is not None:
            included, others = drawn[0][:, number], drawn[1][:, number]
            known = -others  # the others are as loud the other way
        entered = sign * length * (sent * included + known)
        seen = sign * self._released(entered, pipeline, number, seed)
        # What the statistic expects comes from the claim: a clip that fails must not raise it.
        one, clip = length * step, (pipeline.clip or self._context.clip).norm
        view = View(
            seen,
            clip,
            self._other * clip,
            self._context.noise_multiplier * clip * math.sqrt(self._share),
            isinstance(plan.releases(1)[0].mechanism, Laplace),
        )
        if drawn is None:
            return view
        rate = plan.sampling.expected_cohort / self._context.clients
        if isinstance(plan.sampling, FixedSize):
            # Whoever knows all others' data still does not know who was drawn: a canary that is
            # drawn takes the place of one that is as loud the other way.
            seen = seen + plan.sampling.cohort * one
            return replace(
                view, seen=seen, loud=2 * clip, quiet=(self._other + 1) * clip, rate=rate
            )
        # Independent draws: the proof holds even if all others' are known.
        read = (
            others < plan.sampling.expected_cohort if isinstance(plan.sampling, Poisson) else None
        )
        return replace(view, seen=seen + others * one, rate=rate, read=read)

    def _length(self, pipeline: UpdatePipeline, number: int) -> float:
        """What is left of an update far beyond the clip: grid steps, or its norm."""
        key = (pipeline, number if pipeline.rotation is not None else -1)
        if key not in self._lengths:
            row = shaped_canary(self._plan, pipeline, number, self._canary)
            order = 2 if pipeline.clip is None else pipeline.clip.order
            norm = float(torch.linalg.vector_norm(row.double(), ord=order))
            self._lengths[key] = norm if row.is_floating_point() else math.floor(norm)
        return self._lengths[key]

    def _released(
        self, entered: Floats, pipeline: UpdatePipeline, number: int, seed: int
    ) -> Floats:
        placement = self._plan.method.placement
        randomness = Randomness(seed)
        exact = pipeline.granularity is not None
        whole = torch.from_numpy(entered.astype(np.int64) if exact else entered)
        clients = self._honest[:1] if self._local else self._honest
        this_round = RoundContext(number, clients, randomness)
        if isinstance(placement, SecureNoisePlacement) and placement.secure_sum:
            integers = placement.integers(self._context, pipeline, number)
            if integers is not None:
                streams = map(this_round.stream, clients)
                return integers.values(integers.noisy_sum(whole.numpy(), streams))
        summed = PrivateSum(placement, self._context, pipeline, this_round)
        released: Floats = summed.protect(whole, clients).double().numpy()
        return released

    def _draw(self, seed: int, games: int) -> tuple[Bools, Floats]:
        """Whether the canary is drawn, and how many others, `[games, rounds]`."""
        sampling, clients = self._plan.sampling, self._plan.federation.clients
        included = np.zeros((games, len(self._numbers)), np.bool_)
        others = np.zeros(included.shape)
        for game in range(games):
            randomness = Randomness(seed * 2**20 + game)
            for number in self._numbers:
                cohort = sampling.draw(number, randomness.stream("cohort", number), clients)
                included[game, number] = (cohort == self._canary).any()
                others[game, number] = len(cohort) - included[game, number]
        return included, others


def shaped_canary(plan: Plan, pipeline: UpdatePipeline, number: int, canary: int) -> Tensor:
    """What leaves a client whose update is far too long, on one coordinate."""
    norm = 1.0 if pipeline.clip is None else pipeline.clip.norm
    update = torch.zeros(1, plan.layout.size)
    update[0, 0] = _LOUD * norm
    clients, sizes = np.array([canary]), np.array([plan.federation.sizes[canary]])
    senders = Senders(clients, sizes, plan.start, number, Randomness(0))
    return shape_rows(update, pipeline, plan.layout, senders).rows[0]


class _Steps:
    """Local steps in which nothing but the canary has a gradient."""

    def __init__(self, steps: int) -> None:
        self.steps, self.active = np.array([steps]), [1] * steps

    def __len__(self) -> int:
        return 1

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        return torch.empty(1, 0), torch.empty(1, 0), None


class _CanaryGradient:
    """The canary's gradient in the last `uses` of `steps` steps; notes where it was asked."""

    def __init__(self, clipped: Tensor, steps: int, uses: int) -> None:
        self._clipped, self._first, self.asked = clipped, steps - uses, list[Tensor]()

    def __call__(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor | None,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        self.asked.append(weights.clone())
        late = len(self.asked) > self._first
        gradient = self._clipped[None] / denominator if late else torch.zeros_like(weights)
        return gradient.clone(), torch.zeros(1)


class _RecordGame:
    """One record whose gradient is at the clip, on noisy gradients or on the sum of uploads."""

    def __init__(self, plan: Plan, placement: GradientNoise) -> None:
        clip = None if plan.context is None else plan.context.local.gradient_clip
        if plan.context is None or clip is None:
            raise ValueError("a game needs a guarantee")
        self._plan, self._context, self._placement = plan, plan.context, placement
        self._canary, self._numbers = _rounds(plan)
        self._other, self._honest = _other_world(plan), _honest(plan, self._canary)
        self._alone = placement.proof(plan.context) is Proof.ALONE
        self._clip = clip
        self.most = min(1000, plan.layout.size)  # uploads have room for so many loud coordinates
        self.not_tried = (
            "how engines compute and clip one example's gradient (tests/neighbours does)",
        )
        if placement.proof(plan.context) is Proof.CONVEX:
            self.not_tried += ("drift between the steps of a round",)

    def views(self, seed: int, there: Bools) -> Iterator[View]:
        loud = torch.tensor([[_LOUD * self._clip.norm]])
        shorten(loud, Clip(self._clip.norm, self._clip.order))
        for turn, number in enumerate(self._numbers):
            sign = (-1) ** turn
            sent = np.where(there, sign, self._other * sign) * float(loud)
            gradient = torch.from_numpy(sent).float()
            of_round = self._gradients if self._alone else self._upload
            yield from of_round(gradient, sign, number, Randomness(seed))

    def _gradients(
        self, gradient: Tensor, sign: int, number: int, randomness: Randomness
    ) -> Iterator[View]:
        """Each noisy gradient, as the proof for a client alone shows them all."""
        rule = replace(
            self._plan.local,
            weight_decay=0.0,
            penalty=0.0,
            momentum=0.0,
            projection_radius=None,
        )
        uses = local_steps(self._context).uses
        asked = _CanaryGradient(gradient, uses, uses)
        moved = self._walk(asked, rule, uses, [1.0] * uses, self._canary, number, randomness)
        places = [*asked.asked, moved]
        one = self._clip.norm / float(rule.batch_size or 1)
        for before, after in itertools.pairwise(places):
            seen = sign * (before - after)[0].double().numpy()
            yield View(seen, one, self._other * one, rule.gradient_noise)

    def _upload(
        self, gradient: Tensor, sign: int, number: int, randomness: Randomness
    ) -> Iterator[View]:
        """The sum of uploads, the other clients' earlier noise known."""
        rule, steps = self._plan.local, local_steps(self._context)
        pace = rates(self._context, number)
        asked = _CanaryGradient(gradient, steps.most, steps.uses)
        moved = self._walk(asked, rule, steps.most, pace, self._canary, number, randomness)
        pipeline = self._placement.pipeline(self._context, None, number)
        integers = self._placement.integers(self._context, pipeline, number)
        if integers is None:
            silent = torch.zeros_like(gradient)
            for client in map(int, self._honest[1:]):
                nobody = _CanaryGradient(silent, 1, 1)
                own = replace(rule, epochs=None, steps=1)
                moved += self._walk(nobody, own, 1, pace[-1:], client, number, randomness)
            released = moved[0].double().numpy()
        else:
            sizes = np.array([self._plan.federation.sizes[self._canary]])
            whose = np.array([self._canary])
            senders = Senders(whose, sizes, self._plan.start, number, randomness)
            row = shape_rows(moved, pipeline, self._plan.layout, senders).rows[0]
            this_round = RoundContext(number, self._honest, randomness)
            streams = map(this_round.stream, self._honest)
            released = integers.values(integers.noisy_sum(row.numpy(), streams))
        one = math.fsum(pace[-steps.uses :]) * self._clip.norm / float(rule.batch_size or 1)
        noise = pace[-1] * rule.gradient_noise * math.sqrt(len(self._honest))
        yield View(-sign * released, one, self._other * one, noise)

    def _walk(
        self,
        gradients: _CanaryGradient,
        rule: LocalTraining,
        steps: int,
        pace: list[float],
        client: int,
        number: int,
        randomness: Randomness,
    ) -> Tensor:
        start = torch.zeros(len(gradients._clipped))
        streams = [randomness.stream("gradient-noise", number, client)]
        return local_updates(start, _Steps(steps), rule, pace, gradients, streams)[0]
