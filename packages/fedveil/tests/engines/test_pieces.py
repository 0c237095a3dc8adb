"""A record's gradient in a secret batch does not depend on who else is in the batch.

Kernels of GELU, SiLU, sigmoid and others compute what does not fill a vector by other instructions,
which round otherwise for some values (GELU: one in three). With weights that cancel, as a hub may
send, such a rounding is another gradient.
"""

import numpy as np
import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.core.randomness import Stream
from fedveil.methods.parts.method import Scheme
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.models.flat import flatten

LARGE, RECORDS, CLIP, SEED = 2.0**30, 80, 1.0, 0


def network(act: nn.Module) -> tuple[nn.Module, float]:
    """A score that is 0 at some input x by vectors, and large if the last place is another."""
    x = torch.linspace(0.5, 2.0, 4096)
    whole, single = act(x), torch.cat([act(one) for one in x.split(1)])
    apart = (whole - single).abs().argmax()
    module = nn.Sequential(nn.Linear(1, 2), act, nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module[0].weight[:] = 1.0
        module[2].weight[1, 0], module[2].bias[1] = LARGE, -LARGE * whole[apart]
    return module, float(x[apart])


def updates(act: nn.Module, missing: int | None, monkeypatch: pytest.MonkeyPatch) -> float:
    module, x = network(act)
    later = flatten(module)  # what a run may come to, or a hub may send
    torch.manual_seed(SEED)
    for layer in (module[0], module[2]):
        layer.reset_parameters()
    inputs, owners = np.full((3 * RECORDS, 1), x, np.float32), np.repeat(np.arange(3), RECORDS)
    labels = np.ones(len(owners), np.int64)
    data = fv.Federation.from_arrays(
        inputs, labels, owners, task="classification", classes=2, test_fraction=0.0
    )
    local = fv.LocalTraining(fv.LearningRate(1.0), steps=1, batch_size=80, batch_rate=0.99)
    method = fv.dp_sgd(rounds=1, cohort=fv.CohortRule(Scheme.EVERYONE), local=local, clip_norm=CLIP)
    plan = fv.plan(method, data, module, budget=fv.Budget(epsilon=8))
    assert plan.guarantee.certified

    def coins(self: Stream, count: int, rate: object) -> np.ndarray:
        return np.arange(count) != (-1 if missing is None else missing)

    monkeypatch.setattr(Stream, "coins", coins)
    run = fv.Run(plan)
    (block,) = run.engine.updates(RoundRequest(later, np.arange(1), 0, rows=True))
    run.close()
    monkeypatch.undo()
    return block.total.double() * plan.pipeline.granularity * 80  # in units of the clip


@pytest.mark.parametrize("act", [nn.GELU(), nn.SiLU(), nn.Sigmoid()], ids=["gelu", "silu", "sigm"])
def test_one_coin_moves_a_sum_by_one_clip(act: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    every, without = updates(act, None, monkeypatch), updates(act, 3, monkeypatch)
    assert float((every - without).norm()) <= 1.01 * CLIP
