"""Faults planted in the program, and honest plans to plant them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from fedveil.core.randomness import Randomness
from fedveil.core.units import Adjacency
from fedveil.data.federation import Federation
from fedveil.methods.parts import noise_placement
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.privacy import accounting
from fedveil.privacy.clipping import clip_factors, row_norms
from fedveil.privacy.noise import correlated
from fedveil.privacy.noise.modular_grid import NoisyIntegers
from fedveil.privacy.sampling import FixedSize, Poisson, SecretPoisson
from fedveil.privacy.secure_sums.aggregation import COUNT
from fedveil.run import directory
from fedveil.run import round as round_
from fedveil.training.client import batches, update_pipeline
from fedveil.training.client.ballot import Ballot
from fedveil.training.engines import affine_gradients, example_gradients, local_sgd
from fedveil_lab.audit.audit import audit
from fedveil_lab.audit.stand_ins import StandIns

CLIENTS = 20
_BASE: dict[str, Any] = {
    "data": {"source": "digits", "clients": CLIENTS},
    "training": {"method": "dp-fedavg", "rounds": 4, "sampling": "everyone", "local_steps": 1},
    "privacy": {"noise_multiplier": 2.0, "clip_norm": 1.0, "delta": 1e-5},
}

_VOTES: dict[str, Any] = {
    "data.public_fraction": 0.2,
    "training.method": "ae-dpfl",
    "training.rounds": 1,
    "training.sampling": None,
    "privacy.clip_norm": None,
    "voting.questions": 20,
    "voting.epochs": 1,
}

# Records in secret batches: each is in a step by a coin of its own, here with rate 0.11.
_SECRET: dict[str, Any] = {
    "training.method": "dp-sgd",
    "training.sampling": "balanced",
    "training.rate": 1.0,
    "training.local_steps": None,
    "training.batch_size": 8,
    "privacy.noise_multiplier": 0.7,
}

# Honest plans, small and quick: whose data, where the noise is, which noise, which cohorts.
CASES: dict[str, dict[str, Any]] = {
    "central": {},
    "central, replace": {"privacy.adjacency": "replace", "privacy.noise_multiplier": 4.0},
    "central, Poisson": {
        "training.sampling": "poisson",
        "training.rate": 0.1,
        "privacy.noise_multiplier": 0.7,
    },
    "central, fixed": {
        "training.sampling": "fixed",
        "training.cohort": 6,
        "privacy.noise_multiplier": 4.0,
    },
    "central, idealised": {"privacy.arithmetic": "idealised"},
    "central, Laplace": {
        "privacy.noise": "laplace",
        "privacy.noise_multiplier": 4.0,
        "privacy.delta": 0.0,
    },
    "central, correlated": {
        "training.sampling": "round-robin",
        "training.cohort": 5,
        "training.rounds": 8,
        "privacy.correlated": "optimised",
        "privacy.noise_multiplier": 2.5,
    },
    "central, tracked clip": {"privacy.clip_quantile": 0.5, "privacy.clip_noise": 0.1},
    "distributed, sparse": {
        "data.clients": 60,
        "privacy.trust": "distributed",
        "privacy.colluders": 2,
        "privacy.noise_multiplier": 3.0,
        "aggregation.sparse": True,
        "aggregation.honest_server": True,
    },
    "distributed, secret coins": {
        "training.sampling": "secret-poisson",
        "training.rate": 0.1,
        "privacy.trust": "distributed",
        "privacy.noise_multiplier": 0.7,
    },
    "votes": _VOTES,
    "votes, replaced": _VOTES | {"privacy.adjacency": "replace", "privacy.trust": "central"},
    "local": {"privacy.trust": "local", "privacy.noise_multiplier": 4.0},
    "local, Laplace": {
        "training.method": "client-noise",
        "training.sampling": "round-robin",
        "training.rate": 1.0,
        "privacy.noise": "laplace",
        "privacy.noise_multiplier": 8.0,
        "privacy.delta": 0.0,
    },
    "distributed": {"privacy.trust": "distributed", "privacy.colluders": 2},
    "rotated": {
        "training.method": "ddgauss",
        "training.sampling": "balanced",
        "training.rate": 1.0,
    },
    "record, summed": {
        "training.method": "dp-sgd",
        "training.sampling": "balanced",
        "training.rate": 1.0,
        "training.local_steps": None,
        "training.batch_size": 16,
        "training.batches": "shuffled",
    },
    "record, trusted server": _SECRET
    | {
        "training.batches": "shuffled",
        "privacy.trust": "central",
        "privacy.noise_multiplier": 2.0,
    },
    "record, secret batches": _SECRET | {"privacy.trust": "central"},
    "record, secret batches, replaced": _SECRET
    | {"privacy.trust": "central", "training.batches": "poisson", "privacy.adjacency": "replace"},
    # Each of 20 clients brings a share: their sum is the noise of the case above.
    "record, secret batches, masked sums": _SECRET | {"privacy.noise_multiplier": 0.16},
    "person, secret batches": _SECRET | {"privacy.trust": "central", "privacy.unit": "person"},
    "person, secret batches, masked sums": _SECRET
    | {"privacy.unit": "person", "privacy.noise_multiplier": 0.16},
    "record, secret steps": _SECRET
    | {
        "training.method": "gradient-noise",
        "training.local_steps": 6,
        "training.batches": "poisson",
        "privacy.adjacency": "zero-out",
        "privacy.trust": "local",
        "privacy.noise_multiplier": 1.0,
    },
    "record, alone": {
        "training.method": "gradient-noise",
        "training.sampling": "balanced",
        "training.rate": 1.0,
        "training.local_steps": 2,
        "training.batch_size": 16,
        "privacy.trust": "local",
        "privacy.noise_multiplier": 4.0,
    },
}


def plan_for(case: str) -> Plan:
    table = {name: dict(section) for name, section in _BASE.items()}
    changes = {name: value for name, value in CASES[case].items() if value is not None}
    for name, value in CASES[case].items():
        if value is None:
            section, key = name.split(".")
            del table[section][key]
    recipe = recipes.with_defaults(recipes.parse(table, (), changes))
    return plan_of(recipe, _federation(recipe.data, recipe.privacy.unit == "person"))


@cache
def _federation(data: Any, persons: bool = False) -> Any:
    federation = federation_of(data)
    return of_persons(federation) if persons else federation


def of_persons(federation: Federation, records: int = 3) -> Federation:
    """The federation in which so many neighbouring records of a client are one person's."""
    whose = [client * 10**6 + np.arange(n) // records for client, n in enumerate(federation.sizes)]
    train = replace(federation.train, persons=np.concatenate(whose))
    return replace(federation, train=train, verified=False)


Patch = tuple[Any, str, Any]


def _halved(module: Any, name: str) -> Patch:
    real = getattr(module, name)

    def less(total: Any, std: float, *rest: Any) -> Any:
        return real(total, std / 2, *rest)

    return module, name, less


def _reused() -> Patch:
    real = Randomness.stream

    def same(self: Randomness, purpose: str, round_number: int = 0, client: int = -1) -> Any:
        return real(self, purpose, 0 if purpose == "noise" else round_number, client)

    return Randomness, "stream", same


@dataclass
class Clipped:
    norms: Any


def _snapped(rows: torch.Tensor, granularity: float, clip: Any) -> torch.Tensor:
    return (rows.double() / granularity).round().long()


def _not_clipped() -> tuple[Patch, ...]:
    def leave(rows: Any, clip: Any, in_place: bool = False) -> Clipped:
        return Clipped(row_norms(rows, clip.order))

    return (update_pipeline, "clip_rows", leave), (update_pipeline, "snap_rows", _snapped)


def _fixed_size() -> Patch:
    def draw(self: Poisson, round_number: int, stream: Any, clients: int) -> Any:
        return FixedSize(clients, round(self.rate * clients)).draw(round_number, stream)

    return Poisson, "_draw", draw


def _coins_say_yes() -> Patch:
    return SecretPoisson, "coin", lambda self, randomness, number, client: True


def _every_record_is_in() -> Patch:
    """Credit for sampling without sampling."""
    real = batches._poisson_batches

    def whole(clients: Any, sizes: Any, rule: Any, *rest: Any) -> Any:
        return real(clients, sizes, replace(rule, batch_rate=1.0), *rest)

    return batches, "_poisson_batches", whole


def _one_coin_a_round() -> Patch:
    """All local steps of a round see the first one's batch."""
    real = batches._poisson_batches

    def first(*given: Any) -> Any:
        drawn = real(*given)
        positions, mask = (
            np.broadcast_to(one[:, :1], one.shape) for one in (drawn.positions, drawn.mask)
        )
        return replace(drawn, positions=positions, mask=mask)

    return batches, "_poisson_batches", first


def _lost_shares() -> Patch:
    real = NoisyIntegers.noisy_sum

    def some(self: NoisyIntegers, total: Any, streams: Any) -> Any:
        return real(self, total, list(streams)[::3])

    return NoisyIntegers, "noisy_sum", some


def _half_sensitivity() -> Patch:
    return Adjacency, "sensitivity_factor", property(lambda self: 1)


def _less_fresh() -> Patch:
    real = correlated.fresh_noise
    return correlated, "fresh_noise", lambda stream, count, std: real(stream, count, std / 2)


def _coarse_noise() -> Patch:
    real = noise_placement.protect_sum

    def coarse(total: Any, std: float, granularity: float, stream: Any) -> Any:
        return total + 4 * real(0 * total, std, 4 * granularity, stream)

    return noise_placement, "protect_sum", coarse


class _Unchecked:
    """PyTorch, to which every number is finite."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def isfinite(values: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(values, dtype=torch.bool)


def _nan_passes() -> tuple[Patch, ...]:
    """The clip of other systems: times min(1, C / norm), which leaves a NaN where it is."""

    def clip(rows: Any, clip: Any, in_place: bool = False) -> Clipped:
        norms = torch.linalg.vector_norm(rows, ord=clip.order, dim=1)
        rows *= (clip.norm / norms).clamp(max=1.0).nan_to_num(1.0)[:, None]
        return Clipped(norms.numpy())

    return (
        (update_pipeline, "torch", _Unchecked()),
        (update_pipeline, "clip_rows", clip),
        (update_pipeline, "snap_rows", _snapped),
    )


# Where engines clip gradients.
_CLIPPERS = (affine_gradients, example_gradients)


def _gradients_not_clipped() -> tuple[Patch, ...]:
    def ones(norms: Any, clip: Any, *, relative_error: float = 0.0) -> Any:
        return torch.ones_like(norms)

    return tuple((place, "clip_factors", ones) for place in _CLIPPERS)


def _weighted_after_the_clip() -> tuple[Patch, ...]:
    def more(norms: Any, clip: Any, *, relative_error: float = 0.0) -> Any:
        return 2 * clip_factors(norms, clip, relative_error=relative_error)

    return tuple((place, "clip_factors", more) for place in _CLIPPERS)


def _bare_bits() -> Patch:
    real = RoundNoise.protect

    def protect(self: RoundNoise, total: Any, clients: Any) -> Any:
        if self.purpose == COUNT:
            return total * (self.pipeline.granularity or 1.0)
        return real(self, total, clients)

    return RoundNoise, "protect", protect


def _small_shares() -> Patch:
    real = NoisyIntegers.noisy_sum

    def less(self: NoisyIntegers, total: Any, streams: Any) -> Any:
        return real(replace(self, share_std=0.6 * self.share_std), total, streams)

    return NoisyIntegers, "noisy_sum", less


def _two_ballots() -> Patch:
    real = Ballot.__call__
    return Ballot, "__call__", lambda self, *args: 2 * real(self, *args)


def _forgetful() -> Patch:
    real = correlated.NoiseMemory.draw

    def draw(self: Any, *args: Any) -> Any:
        self._past.clear()
        return real(self, *args)

    return correlated.NoiseMemory, "draw", draw


def _bare_average() -> tuple[Patch, ...]:
    """The stored weights get a little of the sums without noise."""
    sums, real = [torch.zeros(1)], StandIns.updates

    def noted(self: StandIns, *args: Any) -> Any:
        sums.append(torch.zeros(1))
        for block in real(self, *args):
            sums[-1] = sums[-1] + block.total.float()
            yield block

    def stored(rounds: int, weights: Any, optimizer: Any) -> Any:
        return directory.Checkpoint(rounds, weights + 1e-3 * sums[-1], optimizer)

    return (StandIns, "updates", noted), (round_, "Checkpoint", stored)


@dataclass(frozen=True)
class Fault:
    case: str
    patches: Callable[[], tuple[Patch, ...]]
    games: int = 2000  # with which nearly every audit notices it


FAULTS: dict[str, Fault] = {
    "noise halved": Fault("central", lambda: (_halved(noise_placement, "protect_sum"),)),
    "Laplace noise halved": Fault(
        "central, Laplace", lambda: (_halved(noise_placement, "protect_sum_laplace"),), 8000
    ),
    "noise of uploads halved": Fault("local", lambda: (_halved(noise_placement, "protect_sum"),)),
    "noise of gradients halved": Fault(
        "record, alone", lambda: (_halved(local_sgd, "protect_sum"),)
    ),
    "two of three shares lost": Fault("distributed", lambda: (_lost_shares(),), 8000),
    "secret coins that always say yes": Fault(
        "distributed, secret coins", lambda: (_coins_say_yes(),)
    ),
    "records in every batch, for a reader of the models": Fault(
        "record, secret batches", lambda: (_every_record_is_in(),)
    ),
    "records in every batch, for a hub": Fault(
        "record, secret batches, masked sums", lambda: (_every_record_is_in(),)
    ),
    "persons in every batch, for a hub": Fault(
        "person, secret batches, masked sums", lambda: (_every_record_is_in(),)
    ),
    "persons not clipped": Fault("person, secret batches", _gradients_not_clipped),
    "records in every local step": Fault("record, secret steps", lambda: (_every_record_is_in(),)),
    "one coin for all steps of a round": Fault(
        "record, secret steps", lambda: (_one_coin_a_round(),), 8000
    ),
    "noise of a trusted server halved": Fault(
        "record, trusted server", lambda: (_halved(noise_placement, "protect_sum"),)
    ),
    "noise on sums of secret batches halved": Fault(
        "record, secret batches", lambda: (_halved(noise_placement, "protect_sum"),), 8000
    ),
    "replace accounted as zero-out": Fault(
        "central, replace", lambda: (_half_sensitivity(),), 8000
    ),
    "bits of a tracked clip without noise": Fault("central, tracked clip", lambda: (_bare_bits(),)),
    "noise shares too small (sparse graph)": Fault(
        "distributed, sparse", lambda: (_small_shares(),), 20_000
    ),
    "a ballot counts twice": Fault("votes", lambda: (_two_ballots(),)),
    "gradients weighted after the clip": Fault("record, summed", _weighted_after_the_clip),
    "stored weights hold sums without noise": Fault("central", _bare_average),
    "correlated noise reused": Fault("central, correlated", lambda: (_reused(),)),
    "correlated noise halved": Fault("central, correlated", lambda: (_less_fresh(),)),
    "noise reused between rounds": Fault("central", lambda: (_reused(),)),
    "clip skipped": Fault("central", _not_clipped),
    "fixed size accounted as Poisson": Fault("central, Poisson", lambda: (_fixed_size(),), 8000),
    "noise on a coarser grid than the data": Fault("central", lambda: (_coarse_noise(),)),
    "NaN passes the clip": Fault("central", _nan_passes),
    "gradients of records not clipped": Fault("record, summed", _gradients_not_clipped),
}


# What no audit accuses, for it harms nobody: noise is larger than it need be.
HARMLESS: dict[str, Fault] = {
    "correlated noise forgets its past": Fault("central, correlated", lambda: (_forgetful(),)),
}


@contextmanager
def planted(fault: str) -> Iterator[str]:
    """Run the faulty program inside; the case to plan with. Nothing it accounted is remembered."""
    chosen = (FAULTS | HARMLESS)[fault]
    patches = chosen.patches()
    before = [vars(place)[name] for place, name, _ in patches]
    accounting._account.cache_clear()
    try:
        for place, name, value in patches:
            setattr(place, name, value)
        yield chosen.case
    finally:
        for (place, name, _), value in zip(patches, before, strict=True):
            setattr(place, name, value)
        accounting._account.cache_clear()


def noticed(fault: str, seed: int) -> bool:
    with planted(fault) as case:
        games = (FAULTS | HARMLESS)[fault].games
        found = audit(plan_for(case), games=games, canaries=0, seed=seed)
    return bool(found.refuted)


def accused(case: str, seeds: range, games: int) -> int:
    """Audits of the honest program that say it breaks its promise."""
    plan = plan_for(case)
    return sum(bool(audit(plan, games=games, canaries=0, seed=s).refuted) for s in seeds)
