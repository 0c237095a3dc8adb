"""Every kind of module that torch trains, in every engine that takes it, alone and beside others.

A crash of the process would end the test run, so one is looked for in a process of its own.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import Tensor, nn

from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Task
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import GradientClip, LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import ENGINES, build_engine, supports
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.images import ChannelsFirst

from .reference import train

EACH = [name for name in ENGINES if name not in ("auto", "processes")]
SIZES = (6, 3, 9)
WHOLE = LocalTraining(LearningRate(0.1), epochs=2, batch_size=3)
CLIPPED = LocalTraining(
    LearningRate(0.1), steps=3, batch_size=3, gradient_clip=GradientClip(0.5, per_example=True)
)
TOKENS = 7


class Text(nn.Module):
    """Token ids to scores, of the last position or of each."""

    def __init__(self, kind: type[nn.RNNBase] | None, outputs: int, each: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 4)
        self.recurrent = None if kind is None else kind(4, 5, batch_first=True)
        self.head = nn.Linear(4 if kind is None else 5, outputs)
        self.each = each

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.embedding(tokens.long())
        if self.recurrent is not None:
            states = self.recurrent(states)[0]
        scores: Tensor = self.head(states if self.each else states.mean(dim=1))
        return scores


def image_net(*layers: nn.Module) -> nn.Sequential:
    pooled = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), *layers, *pooled)


def frozen(network: nn.Sequential, *layers: int) -> nn.Sequential:
    for layer in layers:
        network[layer].requires_grad_(False)
    return network


def images(network: nn.Module) -> nn.Module:
    return ChannelsFirst(network)


KINDS = {
    "frozen Linear": lambda: frozen(nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)), 0),
    "LayerNorm": lambda: nn.Sequential(
        nn.Linear(12, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "GroupNorm": lambda: images(image_net(nn.GroupNorm(2, 8))),
    "GroupNorm first": lambda: images(nn.Sequential(nn.GroupNorm(1, 2), image_net())),
    "frozen Conv2d before GroupNorm": lambda: images(frozen(image_net(nn.GroupNorm(2, 8)), 0)),
    "frozen GroupNorm": lambda: images(frozen(image_net(nn.GroupNorm(2, 8)), 1)),
    "frozen Conv2d and GroupNorm": lambda: images(frozen(image_net(nn.GroupNorm(2, 8)), 0, 1)),
    "frozen wide Conv2d before GroupNorm": lambda: images(
        nn.Sequential(
            nn.Conv2d(2, 16, 3),
            frozen(nn.Sequential(nn.Conv2d(16, 8, 5, padding=2), nn.GroupNorm(2, 8)), 0),
            nn.Flatten(),
            nn.LazyLinear(3),
        )
    ),
    "InstanceNorm": lambda: images(image_net(nn.InstanceNorm2d(8, affine=True))),
    "convolution in one dimension": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 6)), nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)
    ),
    "transposed convolution": lambda: images(
        nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.GELU(), nn.Flatten(), nn.LazyLinear(3))
    ),
    "Embedding": lambda: Text(None, 3),
    "LSTM": lambda: Text(nn.LSTM, 3),
    "GRU": lambda: Text(nn.GRU, 3),
    "LSTM at every position": lambda: Text(nn.LSTM, TOKENS, each=True),
    "one logit": lambda: nn.Linear(12, 1),
    "one logit on a hidden layer": lambda: nn.Sequential(
        nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 1)
    ),
}
TEXTS = ("Embedding", "LSTM", "GRU", "LSTM at every position")


def make_job(kind: str, rule: LocalTraining, isolated: bool) -> Job:
    draw = np.random.default_rng(1)
    total, task = sum(SIZES), Task.CLASSIFICATION
    module = copy.deepcopy(_made(kind))
    inputs: np.ndarray = draw.normal(size=(total, 12)).astype(np.float32)
    classes = 2 if kind.startswith("one logit") else 3
    targets: np.ndarray = draw.integers(0, classes, total)
    if isinstance(module, ChannelsFirst):
        inputs = draw.normal(size=(total, 6, 6, 2)).astype(np.float32)
    elif kind in TEXTS:
        inputs = draw.integers(0, TOKENS, size=(total, 5))
    if kind == "LSTM at every position":
        task, classes, targets = Task.SEQUENCE, TOKENS, np.roll(inputs, -1, axis=1)
    examples = Examples(inputs, targets)
    offsets = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
    federation = Federation(examples, offsets, examples, task, classes)
    grid = 2.0**-20 if isolated else None
    pipeline = UpdatePipeline(Clip(0.5, 2), granularity=grid)
    return Job(
        federation, module, layout_of(module), rule, pipeline, Randomness(5), isolated=isolated
    )


def _made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    module = KINDS[kind]()
    if any(isinstance(child, nn.LazyLinear) for child in module.modules()):
        module(torch.zeros(1, 6, 6, 2))
    return module


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isolated", [False, True], ids=["together", "isolated"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", EACH)
def test_every_kind_of_module_trains_as_torch_trains_it(
    engine: str, kind: str, isolated: bool
) -> None:
    for rule in (WHOLE, CLIPPED):
        job = make_job(kind, rule, isolated)
        if supports(job, engine) is not None:
            pytest.skip(supports(job, engine) or "")
        before = {name: part.clone() for name, part in job.module.state_dict().items()}
        kinds = [type(child) for child in job.module.modules()]
        flags = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state())
        start = flatten(job.module)
        found = sum_of(build_engine(job, engine), RoundRequest(start, np.arange(len(SIZES)), 2))
        assert found.rejected == 0
        if kind != "dropout":
            grid = job.pipeline.granularity
            clients = [train(job, start, client, 2) for client in range(len(SIZES))]
            wanted = torch.stack([client.update for client in clients]).sum(dim=0)
            allowed = sum(client.update_error for client in clients)
            allowed += 0.0 if grid is None else grid * len(SIZES)
            assert (found.total.double() * (grid or 1.0) - wanted).abs().max() <= allowed
            assert wanted.norm() > 20 * allowed
        # Nothing of the user's was touched.
        assert [type(child) for child in job.module.modules()] == kinds
        assert all(torch.equal(before[n], part) for n, part in job.module.state_dict().items())
        assert flags[:2] == (torch.get_num_threads(), torch.is_grad_enabled())
        assert torch.equal(flags[2], torch.get_rng_state())


CRASH = """
import sys
from tests.engines.sums import sum_of
import numpy as np
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.models.flat import flatten
from tests.engines.test_module_kinds import CLIPPED, SIZES, WHOLE, make_job
for kind in sys.argv[1:]:
    for isolated in (False, True):
        for rule in (WHOLE, CLIPPED):
            job = make_job(kind, rule, isolated)
            request = RoundRequest(flatten(job.module), np.arange(len(SIZES)), 0)
            sum_of(build_engine(job, "auto"), request)
    print(kind, flush=True)
"""


def test_no_group_normalisation_ends_the_process() -> None:
    """One process for all kinds: the first that is not named is the one that ended it."""
    kinds = [kind for kind in KINDS if "GroupNorm" in kind]
    done = subprocess.run(
        [sys.executable, "-c", CRASH, *kinds], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, kinds), done.stderr[-500:]


def test_a_layer_used_twice_or_watched_is_left_in_its_place() -> None:
    seen: list[int] = []
    relu = nn.ReLU()
    network = nn.Sequential(
        nn.Conv2d(2, 8, 3), relu, nn.MaxPool2d(2), nn.Conv2d(8, 8, 1), relu, nn.Flatten()
    )
    watched = replace(make_job("GroupNorm", WHOLE, False))
    network.append(nn.LazyLinear(3))
    network(torch.zeros(1, 2, 6, 6))
    network[1].register_forward_hook(lambda module, inputs, output: seen.append(output.shape[2]))
    module = ChannelsFirst(network)
    job = replace(watched, module=module, layout=layout_of(module))
    sum_of(build_engine(job, "sequential"), RoundRequest(flatten(module), np.arange(1), 0))
    assert set(seen) == {4, 2}  # before the pooling, and behind the second convolution
