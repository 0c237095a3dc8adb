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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.local_steps import local_steps, rates
from fedveil.methods.parts.noise_placement import Bounded, Drawn, RoundNoise
from fedveil.planning.plan import Plan
from fedveil.privacy.clipping import Clip
from fedveil.privacy.correlated import ONE, CorrelatedGaussian
from fedveil.privacy.mechanisms import Laplace
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.privacy.sampling import FixedSize, Poisson, takes_part
from fedveil.privacy.secure_sums.aggregation import COUNT
from fedveil.run.sums import update_sum
from fedveil.training.client.batches import draw_batches
from fedveil.training.client.local_training import GradientClip, LocalTraining
from fedveil.training.client.update_pipeline import TrainedClients, UpdatePipeline, shape_rows
from fedveil.training.engines.local_sgd import local_updates, shorten
from fedveil.training.engines.records import Batch

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Scores = dict[str, Floats]  # by the name of a statistic; large if the canary seems to be there

_LOUD = 1e6  # how far beyond its clip a canary's update goes


@dataclass(frozen=True)
class View:
    """The adversary's view of one round, game by game, and what it is told to expect.

    `seen` lies around `loud` if the canary is there and around `quiet` if not; with a secret cohort
    it does so with probability `rate`, and around zero else. `read` marks the games in which the
    rest of the cohort gives away that the canary was drawn, if anything does. `bits` says of the
    last two bits of what is seen whether they are those of `loud` (1), of `quiet` (-1) or neither.
    `more` has statistics that are not weighed with the others: a tracked clip's count, and a
    difference of rounds in which noise that is used twice would cancel.
    """

    seen: Floats
    loud: float
    quiet: float
    noise: float
    laplace: bool = False
    rate: float = 1.0
    read: Bools | None = None
    bits: Floats | None = None
    more: Mapping[str, Floats] = field(default_factory=dict)

    def scores(self) -> Scores:
        """Return the statistics of this view, one value for each game."""
        loud, quiet = self.against_zero(self.loud), self.against_zero(self.quiet)
        found = {"sum": self.seen * ((self.loud - self.quiet) / self.noise**2)}
        found["likelihood"] = self.mixed(loud) - self.mixed(quiet)
        if self.read is not None:
            found["cohort"] = np.where(self.read, loud - quiet, 0.0)
        if self.bits is not None:
            found["bits"] = self.bits
        return found | dict(self.more)

    def against_zero(self, mean: float) -> Floats:
        """Return the log-likelihood ratio of noise around `mean` and noise around zero."""
        if self.laplace:
            ratio: Floats = (np.abs(self.seen) - np.abs(self.seen - mean)) / self.noise
            return ratio
        return (self.seen * mean - mean**2 / 2) / self.noise**2

    def mixed(self, ratio: Floats) -> Floats:
        """Return the same ratio if the mean is there with probability `rate` only."""
        if self.rate == 1:
            return ratio
        return np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + ratio)


def _with_one_coin(views: Sequence[View]) -> Floats:
    """Return the log-likelihood ratio of views if one coin decided of all of them."""
    loud = np.sum([view.against_zero(view.loud) for view in views], axis=0)
    quiet = np.sum([view.against_zero(view.quiet) for view in views], axis=0)
    return views[0].mixed(loud) - views[0].mixed(quiet)


class Players:
    """Who plays: a canary that takes part as often as anybody, and whom the proof counts on."""

    def __init__(self, plan: Plan) -> None:
        if plan.noise is None or plan.guarantee is None:
            raise ConfigError("audit: this method adds no noise and promises nothing")
        self.plan, self.noise, self.guarantee = plan, plan.noise, plan.guarantee
        self.context = plan.noise.facts
        self.release = plan.releases(plan.method.rounds)[0]
        self.canary, self.numbers = 0, list(range(plan.method.rounds))
        if not plan.sampling.amplifies:  # else it is drawn in secret, or at worst every time
            stream = Randomness(0).stream("cohort")
            cohorts = [plan.sampling.draw(number, stream) for number in self.numbers]
            self.canary = int(np.bincount(np.concatenate(cohorts)).argmax())
            self.numbers = [number for number in self.numbers if self.canary in cohorts[number]]
        # What it sends in the other world, beside what it sends in the first.
        self.other = -1 if self.guarantee.adjacency is Adjacency.REPLACE else 0
        # Whose noise shares the adversary does not know, the canary's among them.
        others = (client for client in range(plan.federation.clients) if client != self.canary)
        known_to_none = itertools.islice(others, (self.guarantee.honest_shares or 1) - 1)
        self.honest = np.array([self.canary, *known_to_none], dtype=np.int64)

    def shaped(
        self, updates: Tensor, pipeline: UpdatePipeline, number: int, randomness: Randomness
    ) -> Tensor:
        """Return what leaves the canary's client for these updates `[1, parameters]`."""
        sizes = np.array([self.plan.federation.sizes[self.canary]])
        senders = TrainedClients(self.honest[:1], sizes, self.plan.start, number, randomness)
        return shape_rows(updates, pipeline, self.plan.layout, senders).total


@dataclass(frozen=True)
class _Sum:
    """A sum that leaves a round: whether the canary is `sign * length` in it, in grid steps."""

    at: RoundNoise
    length: float
    sign: int


class ClientGame:
    """All that one client sends, on noisy sums, on its own noisy upload, or on masked sums."""

    most = 1000  # games in one call

    def __init__(self, plan: Plan) -> None:
        self._at = at = Players(plan)
        self._state = plan.optimizer.start(plan.start)
        shares = at.guarantee.honest_shares
        # Two ballots differ by no more than sqrt(2) of their length, half of it to either side.
        replaced = plan.method.voting is not None and at.other == -1
        self._ballots = math.sqrt(0.5) if replaced else 1.0
        self._share = 1.0 if shares is None else shares / takes_part(plan.sampling).expected_cohort
        self._lengths: dict[tuple[object, ...], float] = {}
        self.not_tried: tuple[str, ...] = at.noise.not_audited
        if at.noise.count is not None:
            self.not_tried += ("tracked clips other than the first (it was held still)",)

    def views(self, seed: int, there: Bools) -> Iterator[View]:
        """Play one game for each entry of `there`; what is seen, round by round."""
        coins = self._at.release.amplified or self._at.plan.sampling.coin_rate < 1
        drawn = self._draw(seed, len(there)) if coins else None
        for turn, number in enumerate(self._at.numbers):
            for one in self._sums(number, (-1) ** turn):
                yield self._view(seed, there, number, one, drawn)

    def _sums(self, number: int, sign: int) -> Iterator[_Sum]:
        """Return the sums of a round: the update, and of a tracked clip the bit that it was hit."""
        at, no_randomness = self._at, Randomness(0)
        sent = update_sum(at.plan, number, at.honest, no_randomness, self._state)
        yield _Sum(sent, self._length(sent.pipeline, number), sign)
        if sent.count is not None:
            row = at.context.rule.halves(sent.count, sent.clip, torch.tensor([math.inf]))
            length = float(torch.linalg.vector_norm(row.double()))
            yield _Sum(sent.count, length, -1)

    def _view(
        self,
        seed: int,
        there: Bools,
        number: int,
        sent: _Sum,
        drawn: tuple[Bools, Floats] | None,
    ) -> View:
        at, sampling = self._at, self._at.plan.sampling
        pipeline, length, sign = sent.at.pipeline, sent.length, sent.sign
        included, others = np.ones(len(there), np.bool_), np.zeros(len(there))
        if drawn is not None:  # the others are as loud the other way
            included, others = drawn[0][:, number], drawn[1][:, number]
        entered = sign * length * (np.where(there, 1.0, at.other) * included - others)
        released, spare = self._released(entered, sent, number, seed)
        seen = sign * released
        # What the statistic expects comes from the claim: a clip that fails must not raise it.
        clip = sent.at.clip.norm * self._ballots
        noise = sent.at.scale * math.sqrt(self._share)
        if isinstance(at.release.mechanism, CorrelatedGaussian):
            clip *= at.release.mechanism.norm  # later rounds show it again
        laplace = isinstance(at.release.mechanism, Laplace)
        more = {} if spare is None else {"difference": sign * spare}
        if sent.at.purpose == COUNT:
            more["count"] = seen
        view = View(seen, clip, at.other * clip, noise, laplace, more=more)
        if drawn is None and pipeline.granularity is not None:
            steps = np.rint(released / pipeline.granularity) % 4
            loud, quiet = (sign * way * length % 4 for way in (1, at.other))
            view = replace(view, bits=(steps == loud) * 1.0 - (steps == quiet) * 1.0)
        if drawn is None:
            return view
        one = length * (pipeline.granularity or 1.0)
        rate = sampling.expected_cohort / at.context.clients
        if isinstance(sampling, FixedSize):
            # Who was drawn is a secret, though all data are known: a canary that is drawn takes the
            # place of one that is as loud the other way.
            view = replace(view, loud=2 * clip, quiet=(at.other + 1) * clip)
            return replace(view, seen=seen + sampling.cohort * one, rate=rate)
        # Independent draws: the proof holds even if all others' are known.
        read = others < sampling.expected_cohort if isinstance(sampling, Poisson) else None
        return replace(view, seen=seen + others * one, rate=rate, read=read)

    def _length(self, pipeline: UpdatePipeline, number: int) -> float:
        """What is left of an update far beyond the clip: grid steps, or its norm."""
        key = (pipeline, number if pipeline.rotation is not None else -1)
        if key not in self._lengths:
            update = torch.zeros(1, self._at.plan.layout.size)
            update[0, 0] = _LOUD * (1.0 if pipeline.clip is None else pipeline.clip.norm)
            row = self._at.shaped(update, pipeline, number, Randomness(0))
            order = 2 if pipeline.clip is None else pipeline.clip.order
            norm = float(torch.linalg.vector_norm(row.double(), ord=order)) * self._ballots
            # Odd, so that neither silence nor the opposite ends in the same two bits.
            self._lengths[key] = (
                norm if row.is_floating_point() else max(1, (math.floor(norm) + 1) // 2 * 2 - 1)
            )
        return self._lengths[key]

    def _released(
        self, entered: Floats, sent: _Sum, number: int, seed: int
    ) -> tuple[Floats, Floats | None]:
        whole = torch.from_numpy(entered.astype(np.int64) if sent.at.integer else entered)
        alone = self._at.guarantee.trust is Trust.LOCAL
        clients = self._at.honest[:1] if alone else self._at.honest
        at = replace(sent.at, cohort=clients, randomness=Randomness(seed), memory=NoiseMemory())
        law = self._at.release.mechanism
        if isinstance(law, CorrelatedGaussian):
            return self._uncorrelated(whole, at, law)
        if at.integers is not None:  # the server's own view, before anything is decoded
            noisy = at.integers.noisy_sum(whole.numpy(), at.streams())
            return at.integers.values(noisy), None
        return np.asarray(at.protect(whole, clients).numpy(), dtype=np.float64), None

    def _uncorrelated(
        self, whole: Tensor, at: RoundNoise, law: CorrelatedGaussian
    ) -> tuple[Floats, Floats | None]:
        """One participation as the proof reads it: C y of all rounds that show it, along c.

        Beside it how much more the first of them shows than the second.
        """
        seen = []
        if at.memory is not None:
            at.memory.begin(at.round_number)
        column = np.array(law.factor) / ONE
        for later in range(law.bands):
            then = replace(at, round_number=at.round_number + later)
            sent = whole if later == 0 else torch.zeros_like(whole)
            seen.append(then.protect(sent, then.cohort))
        rows = torch.stack(seen).double().numpy()
        fresh = [column[: later + 1][::-1] @ rows[: later + 1] for later in range(law.bands)]
        return np.asarray(column @ np.array(fresh) / law.norm), (
            fresh[0] - fresh[1] if law.bands > 1 else None
        )

    def _draw(self, seed: int, games: int) -> tuple[Bools, Floats]:
        """Whether the canary is drawn, and how many others, `[games, rounds]`."""
        at, sampling = self._at, self._at.plan.sampling
        included = np.zeros((games, len(at.numbers)), np.bool_)
        others = np.zeros(included.shape)
        for game in range(games):
            randomness = Randomness(seed * 2**20 + game)
            for number in at.numbers:
                if sampling.coin_rate < 1:  # what the others' coins add is known, and taken off
                    included[game, number] = sampling.coin(randomness, number, at.canary)
                    continue
                stream = randomness.stream("cohort", number)
                cohort = sampling.draw(number, stream, at.plan.federation.clients)
                included[game, number] = (cohort == at.canary).any()
                others[game, number] = len(cohort) - included[game, number]
        return included, others


class _Steps:
    """The local steps of one client in which nothing but the canary has a gradient.

    Notes the weights at which gradients were asked for.
    """

    def __init__(self, gradients: Tensor) -> None:
        self.steps, self.active = np.array([len(gradients)]), [1] * len(gradients)
        self.gradients, self.asked = gradients, list[Tensor]()

    def __len__(self) -> int:
        return 1

    def batch(self, step: int) -> Batch:
        return torch.empty(1, 0), torch.empty(1, 0), None

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        self.asked.append(weights.clone())
        return self.gradients[len(self.asked) - 1][None] / denominator, torch.zeros(1)


class RecordGame:
    """One record or person whose gradient is at the clip, on noisy gradients or a sum of uploads.

    With secret batches the canary is in a step by the coin that the program tosses for it: every
    game is a record of the client, with a coin of its own. A person who may be at several sites is
    at all of them, each with a coin of its own.
    """

    def __init__(self, plan: Plan) -> None:
        self._at, clip = Players(plan), plan.local.gradient_clip
        if clip is None:
            raise ConfigError("audit: gradients are not clipped")
        self._clip = Clip(clip.norm, clip.order)
        self._sites = clip.sites_per_person or 1
        some = takes_part(plan.sampling).expected_cohort < plan.federation.clients
        if self._sites > 1 and (some or self._at.guarantee.trust is Trust.LOCAL):
            raise ConfigError(
                "audit: persons at several sites are audited on sums in which all sites take part"
            )
        self._one = clip.norm / float(plan.local.batch_size or 1)
        self._noise = self._one * self._at.context.noise_multiplier
        self.most = min(1000, plan.layout.size)  # uploads have room for so many loud coordinates
        self.not_tried: tuple[str, ...] = (
            "how engines compute and clip gradients, beyond the probes",
            *self._at.noise.not_audited,
        )

    def views(self, seed: int, there: Bools) -> Iterator[View]:
        """Play one game for each entry of `there`; what is seen, round by round."""
        loud = torch.tensor([[_LOUD * self._clip.norm]])
        shorten(loud, self._clip)
        sent = torch.from_numpy(np.where(there, 1.0, self._at.other)).float() * loud[0]
        see = self._gradients if self._at.guarantee.trust is Trust.LOCAL else self._upload
        rate = self._at.plan.local.batch_rate or 1.0
        for turn, number in enumerate(self._at.numbers):
            sign, randomness = (-1) ** turn, Randomness(seed)
            entered = self._steps(len(there), number, randomness) * sign * sent
            steps = [
                replace(view, seen=sign * view.seen, rate=rate)
                for view in see(entered, number, randomness)
            ]
            if rate < 1 and len(steps) > 1:
                steps[-1] = replace(steps[-1], more={"one coin": _with_one_coin(steps)})
            yield from steps

    def _steps(self, games: int, number: int, randomness: Randomness) -> Tensor:
        """Return in which local steps each game's canary is, `[steps, games]`.

        In those of its coins; without secret batches in the last ones that may use it.
        """
        counts, rule = local_steps(self._at.context), self._at.plan.local
        entered = torch.zeros(counts.most, games)
        if rule.batch_rate is None:
            entered[counts.most - counts.uses :] = self._sites
            return entered
        clients = self._at.plan.federation.clients
        sites = (self._at.canary + np.arange(self._sites)) % clients
        drawn = draw_batches(sites, np.full(len(sites), games), rule, number, randomness)
        for positions, mask in zip(drawn.positions, drawn.mask, strict=True):
            for step, (places, real) in enumerate(zip(positions, mask, strict=True)):
                entered[step, places[real]] += 1.0
        return entered

    def _gradients(self, gradients: Tensor, number: int, randomness: Randomness) -> Iterator[View]:
        """Yield every noisy gradient: the proof for a single client shows them all."""
        rule = replace(self._at.plan.local, weight_decay=0.0, penalty=0.0)  # they follow the noise
        rule = replace(rule, momentum=0.0, projection_radius=None)
        if rule.batch_rate is None:
            gradients = gradients[-local_steps(self._at.context).uses :]
        steps = _Steps(gradients)
        end = self._walk(steps, rule, [1.0] * len(gradients), self._at.canary, number, randomness)
        for before, after in itertools.pairwise([*steps.asked, end]):
            seen = (before - after)[0].double().numpy()
            yield View(seen, self._one, self._at.other * self._one, self._noise)

    def _upload(self, gradients: Tensor, number: int, randomness: Randomness) -> Iterator[View]:
        """Yield the released sum of uploads; noise of others before the last step is known."""
        at, rule, count = self._at, self._at.plan.local, local_steps(self._at.context)
        pace = rates(at.context, number)
        moved = self._walk(_Steps(gradients), rule, pace, at.canary, number, randomness)
        sent = update_sum(at.plan, number, at.honest, randomness, {})
        if at.noise.drawn is Drawn.BY_SERVER:
            row = at.shaped(moved, sent.pipeline, number, randomness)
            released = sent.protect(row, at.honest).double().numpy()
        elif sent.integers is None:
            for client in map(int, at.honest[1:]):
                silent = _Steps(0 * gradients[:1])
                moved += self._walk(silent, rule, pace[-1:], client, number, randomness)
            released = moved[0].double().numpy()
        else:
            row = at.shaped(moved, sent.pipeline, number, randomness)
            released = sent.integers.values(sent.integers.noisy_sum(row.numpy(), sent.streams()))
        one = math.fsum(pace[-count.uses :]) * self._one * self._sites
        noise = pace[-1] * self._noise * math.sqrt(len(at.honest))
        yield View(-released, one, at.other * one, noise)

    @staticmethod
    def _walk(
        steps: _Steps,
        rule: LocalTraining,
        pace: list[float],
        client: int,
        number: int,
        randomness: Randomness,
    ) -> Tensor:
        start = torch.zeros(steps.gradients.shape[1])
        streams = [randomness.stream("gradient-noise", number, client)]
        return local_updates(start, steps, rule, pace, steps, streams)[0]


def game_of(plan: Plan) -> Game:
    """Return the game that this plan's guarantee is about; refuse what cannot be played yet."""
    guarantee, noise = plan.guarantee, plan.noise
    if noise is not None and noise.bounded is Bounded.GRADIENT:
        return RecordGame(plan)
    if guarantee is not None and guarantee.unit is not Unit.CLIENT:
        raise ConfigError(f"audit: {type(noise).__name__} at record level is not audited")
    return ClientGame(plan)


class Game(Protocol):
    """A game: `most` of them at once, and what is seen of them, round by round."""

    most: int
    not_tried: tuple[str, ...]

    def views(self, seed: int, there: Bools) -> Iterator[View]:
        """One game for each entry of `there`: whether the canary is."""
        ...


def play(game: Game, seed: int, there: Bools) -> Scores:
    """Return every statistic summed over all rounds, one value for each game."""
    total: Scores = {}
    for view in game.views(seed, there):
        for name, score in view.scores().items():
            total[name] = total.get(name, 0.0) + score
    return total
