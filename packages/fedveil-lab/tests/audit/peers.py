"""Audits of other systems' own code: `python -m tests.audit.peers`, where they are installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedveil_lab.audit.bounds import refuted_epsilon
from fedveil_lab.audit.many_runs import judged

GAMES = 20_000
Claim = tuple[float, float, Any, Any]  # epsilon, delta, scores with and without the canary


def at_least(one: Any, other: Any, delta: float) -> float:
    """A lower bound on epsilon at 95 %, from scores in two worlds."""
    each = 0.05 / 4
    _, found = judged({"score": one}, {"score": other}, delta, each)
    return max(float(refuted_epsilon(*rates.bounds(each), delta)) for rates in found)


def local_dp() -> Claim:
    """Flower's LocalDpMod with sensitivity = clipping_norm, ten rounds, a client at both ends."""
    from flwr.compat.common.parameter import ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.supercore.differential_privacy import (
        add_localdp_gaussian_noise_to_params,
        compute_clip_model_update,
    )

    epsilon, delta, clip = 1.0, 1e-5, 1.0
    scores = []
    for sign in (1.0, -1.0):
        total = np.zeros(GAMES // 2)
        for game in range(GAMES // 2):
            for _ in range(10):
                update = [np.array([sign * 100.0])]
                compute_clip_model_update(update, [np.zeros(1)], clip)
                sent = add_localdp_gaussian_noise_to_params(
                    ndarrays_to_parameters(update), clip, epsilon, delta
                )
                total[game] += parameters_to_ndarrays(sent)[0][0]
        scores.append(total)
    return epsilon, delta, scores[0], scores[1]


def shuffled_batches() -> Claim:
    """Opacus with poisson_sampling=False: two epochs of 40 batches, canaries in the first.

    Each of 250 canary records has a coordinate of its own, and so is a game of its own.
    """
    from opacus import PrivacyEngine

    canaries, batches, epochs, delta = 250, 40, 2, 1e-5
    chance, scores = np.random.default_rng(0), {True: [], False: []}
    spent = 0.0
    for _ in range(GAMES // canaries):
        there = chance.random(canaries) < 0.5
        inputs = torch.zeros(batches * canaries, canaries)
        inputs[:canaries] = torch.from_numpy(np.diag(100.0 * there)).float()
        net = torch.nn.Linear(canaries, 1, bias=False)
        engine = PrivacyEngine()
        net, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
            data_loader=torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(inputs), batch_size=canaries
            ),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            loss_reduction="sum",
        )
        seen = torch.zeros(canaries)
        for _ in range(epochs):
            for number, (batch,) in enumerate(loader):
                optimizer.zero_grad()
                net(batch).sum().backward()
                optimizer.step()
                if number == 0:
                    seen += next(net.parameters()).grad[0]
        for world in (True, False):
            scores[world].append(seen.numpy()[there == world])
        spent = spent or engine.get_epsilon(delta)
    one, other = (np.concatenate(scores[world]) for world in (True, False))
    return spent, delta, one, other


def one_record_fewer() -> Claim:
    """Opacus as it is: 100 records in batches of 10, or 99 of them; one step of 1,000 weights.

    All gradients are zero. With 99 records the noise is divided by 9 and not by 10, which the norm
    of what is released shows.
    """
    from opacus import PrivacyEngine

    delta, scores, spent = 1e-5, [], 0.0
    for records in (99, 100):
        torch.manual_seed(records)
        net = torch.nn.Linear(1000, 1, bias=False)
        engine = PrivacyEngine()
        net, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
            data_loader=torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(torch.zeros(records, 1000)), batch_size=10
            ),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        norms: list[float] = []
        while len(norms) < GAMES // 2:
            for (batch,) in loader:
                optimizer.zero_grad()
                net(batch).sum().backward()
                optimizer.step()
                spent = spent or engine.get_epsilon(delta)  # of one step
                norms.append(float(next(net.parameters()).grad.norm()))
        scores.append(np.array(norms[: GAMES // 2]))
    return spent, delta, scores[0], scores[1]


def laplace_replaced() -> Claim:
    """Laplace noise of scale 1 on one bit that is replaced: from -1 to 1, once.

    The library's RDP accountant ignores that units are replaced.
    """
    from dp_accounting import NeighboringRelation, dp_event, rdp

    spent = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    claimed = spent.compose(dp_event.LaplaceDpEvent(1.0)).get_epsilon(1e-5)
    one, other = (np.round(scores, 9) for scores in _likelihoods(0))
    return float(claimed), 1e-5, one, other


def floating_point() -> Claim:
    """The same noise, for which epsilon 2 is a theorem about real numbers.

    Beyond both centres the likelihood ratio is constant, but for rounding: its last bits tell from
    which side the noise came (Mironov 2012).
    """
    one, other = _likelihoods(0)
    return 2.0, 1e-5, one, other


def _likelihoods(seed: int) -> tuple[Any, Any]:
    chance = np.random.default_rng(seed)
    seen = [centre + chance.laplace(size=GAMES // 2) for centre in (1.0, -1.0)]
    one, other = (np.abs(each + 1) - np.abs(each - 1) for each in seen)
    return one, other


AUDITS: dict[str, Callable[[], Claim]] = {
    "Flower, LocalDpMod(1.0, 1.0, 1.0, 1e-5), ten rounds": local_dp,
    "Opacus, poisson_sampling=False, z = 1, 2 epochs of 40 batches": shuffled_batches,
    "Opacus, z = 1, one step, one of 100 records removed": one_record_fewer,
    "dp-accounting, RDP of Laplace under REPLACE_ONE, one release": laplace_replaced,
    "numpy, Laplace noise in floating point, one release": floating_point,
}


def main() -> None:
    warnings.simplefilter("ignore")
    for name, run in AUDITS.items():
        try:
            claimed, delta, one, other = run()
        except ImportError as missing:
            print(f"{name}: not tried ({missing})")
            continue
        shown = at_least(one, other, delta)
        verdict = "refuted" if shown > claimed else "not refuted"
        print(f"{name}: claimed {claimed:.3f}, at least {shown:.3f} at delta {delta:g}: {verdict}")


if __name__ == "__main__":
    main()
