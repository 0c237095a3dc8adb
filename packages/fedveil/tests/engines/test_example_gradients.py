"""Sums of clipped gradients are those of autograd, one example after the other, in any module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Task
from fedveil.training.client.local_training import GradientClip, LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.contract import Job
from fedveil.training.engines.example_gradients import (
    ExampleGradients,
    ExampleWay,
    example_way,
)
from fedveil.training.engines.layer_gradients import ConvolutionLayer, Tape
from fedveil.training.models.flat import flatten, layout_of

CPU = torch.device("cpu")


class Network(nn.Module):
    """Layers one after the other, of which some return a tuple, and three scores of everything."""

    def __init__(self, *layers: nn.Module, tokens: bool = False) -> None:
        super().__init__()
        self.layers, self.output = nn.ModuleList(layers), nn.LazyLinear(3)
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        x = x.long() if self.tokens else x
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        scores: Tensor = self.output(x.flatten(1))
        return scores


class LastStates(nn.Module):
    """What a recurrent layer returns beside its outputs, in the default order."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x.transpose(0, 1))[1]
        last = torch.cat(states, -1) if isinstance(states, tuple) else states
        return last.transpose(0, 1)


class Attends(nn.Module):
    def __init__(self, first: bool, mask: bool, **settings: object) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=first, **settings)
        self.first, self.mask = first, mask

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else x.transpose(0, 1)
        length = x.shape[1 if self.first else 0]
        mask = torch.ones(length, length).triu(1).bool() if self.mask else None
        found, weights = self.layer(x, x, x, attn_mask=mask, need_weights=self.mask)
        found = found if self.first else found.transpose(0, 1)
        return found if weights is None else torch.cat([found.flatten(1), weights.flatten(1)], 1)


class Twice(nn.Module):
    """A layer that is used twice, on inputs of its own size."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(torch.tanh(self.layer(x)))
        return found


class Outside(nn.Module):
    """A layer whose weight is also used without it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(torch.tanh(self.layer(x)), self.layer.weight)


class Tied(nn.Module):
    """An embedding whose table is a matrix as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.matrix = nn.Embedding(5, 4), nn.Linear(4, 5)
        self.matrix.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.matrix(torch.tanh(self.table(x.long())))
        return found


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x += x
        return x


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def adapted() -> nn.Module:
    """A frozen layer, and one of which the bias alone is trained."""
    frozen, partly = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)
    partly.weight.requires_grad_(False)
    return Network(nn.Linear(6, 6), frozen, nn.Tanh(), partly, nn.LayerNorm(6))


Build = Callable[[], nn.Module]
IMAGES, SERIES, WORDS = (2, 6, 5), (5, 8), (7,)
CASES: dict[str, tuple[Build, tuple[int, ...]]] = {
    "affine": (lambda: Network(nn.Linear(6, 5), nn.ReLU()), (6,)),
    "positions": (lambda: Network(nn.Linear(8, 3), nn.ReLU()), SERIES),
    "few positions": (lambda: Network(nn.Linear(40, 30), nn.ReLU()), (2, 40)),
    "1-D": (lambda: Network(nn.Conv1d(5, 4, 3, stride=2, padding=2), nn.Tanh()), SERIES),
    "2-D": (
        lambda: Network(nn.Conv2d(2, 3, (3, 2), 2, 1), nn.Tanh(), nn.Conv2d(3, 4, 2, bias=False)),
        IMAGES,
    ),
    "2-D, few positions": (lambda: Network(nn.Conv2d(30, 20, 2), nn.Tanh()), (30, 3, 3)),
    "2-D, grouped": (
        lambda: Network(nn.Conv2d(2, 4, 3, padding="same", groups=2, dilation=2), nn.Tanh()),
        IMAGES,
    ),
    "2-D, reflected": (
        lambda: Network(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")),
        IMAGES,
    ),
    "2-D, uneven": (lambda: Network(nn.Conv2d(2, 4, 2, padding="same")), IMAGES),
    "3-D": (lambda: Network(nn.Conv3d(1, 3, 2), nn.InstanceNorm3d(3, affine=True)), (1, 4, 3, 3)),
    "transposed": (lambda: Network(nn.ConvTranspose2d(2, 3, 2)), IMAGES),
    "known images": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 9, 3, padding=1), nn.GroupNorm(3, 9), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(9, 4, 3, padding=1), nn.Flatten(), nn.Linear(24, 3),
        ),
        IMAGES,
    ),
    "in place": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 9, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(108, 4),
            nn.ReLU(inplace=True), nn.Linear(4, 3),
        ),
        IMAGES,
    ),
    "in place, own code": (
        lambda: Network(nn.Conv2d(2, 9, 3), nn.GroupNorm(3, 9), nn.ReLU(inplace=True),
                        nn.Linear(3, 4), Doubles(), nn.ELU(inplace=True)),
        IMAGES,
    ),
    "norms": (
        lambda: Network(nn.LayerNorm((5, 8)), nn.GroupNorm(5, 5), nn.RMSNorm(8),
                        nn.InstanceNorm1d(5, affine=True), nn.Linear(8, 4)),
        SERIES,
    ),
    "embedding": (lambda: Network(nn.Embedding(5, 4, padding_idx=1), tokens=True), WORDS),
    "lstm": (lambda: Network(nn.LSTM(8, 4, 2, batch_first=True)), SERIES),
    "lstm, both ways": (lambda: Network(LastStates(nn.LSTM(8, 3, 2, bidirectional=True))), SERIES),
    "gru": (lambda: Network(nn.GRU(8, 4, batch_first=True), nn.GRU(4, 3, bias=False)), SERIES),
    "gru, both ways": (lambda: Network(LastStates(nn.GRU(8, 3, 2, bidirectional=True))), SERIES),
    "rnn": (
        lambda: Network(
            nn.RNN(8, 4, batch_first=True), LastStates(nn.RNN(4, 3, nonlinearity="relu"))
        ),
        SERIES,
    ),
    "attention": (lambda: Network(Attends(True, False)), SERIES),
    "attention, masked": (lambda: Network(Attends(False, True, kdim=8, vdim=8)), SERIES),
    "attention, more keys": (lambda: Network(Attends(True, False, add_bias_kv=True)), SERIES),
    "transformer": (
        lambda: Network(nn.TransformerEncoderLayer(8, 2, 6, dropout=0.0, batch_first=True)),
        SERIES,
    ),
    "layer used twice": (lambda: Network(Twice(nn.Linear(8, 8))), SERIES),
    "convolution used twice": (lambda: Network(Twice(nn.Conv2d(2, 2, 3, padding=1))), IMAGES),
    "weight used outside": (Outside, (6,)),
    "tied": (lambda: Network(Tied()), WORDS),
    "own parameter": (lambda: Network(nn.Linear(6, 6), OwnParameter(), nn.PReLU()), (6,)),
    "frozen": (adapted, (6,)),
}  # fmt: skip


def job_of(
    module: nn.Module, inputs: Tensor, targets: Tensor, clip: GradientClip, isolated: bool
) -> Job:
    examples = Examples(inputs.numpy(), targets.numpy())
    offsets = np.array([0, len(inputs)])
    classes = int(module(inputs[:1]).shape[-1])
    federation = Federation(examples, offsets, examples, Task.CLASSIFICATION, classes)
    rule = LocalTraining(LearningRate(1.0), steps=1, batch_size=8, gradient_clip=clip)
    made = (federation, module, layout_of(module), rule, UpdatePipeline(), Randomness(1))
    return Job(*made, isolated)


def one_by_one(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    clip: GradientClip,
    shares: Tensor | None = None,
) -> Tensor:
    """The sum by autograd in double precision, an example (or a person's mean loss) at a time."""
    module = copy.deepcopy(module).double()
    if shares is None:
        inputs, targets, shares = inputs[:, None], targets[:, None], torch.ones(len(inputs), 1)
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for x, y, share in zip(inputs.double(), targets, shares.double(), strict=True):
        loss = (functional.cross_entropy(module(x), y, reduction="none") * share).sum()
        found = torch.autograd.grad(loss, parameters, materialize_grads=True)
        each = torch.cat([one.flatten() for one in found])
        norm = float(torch.linalg.vector_norm(each, ord=clip.order))
        total += each if norm <= clip.norm else each * (clip.norm / norm)
    return total


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    st.integers(0, 5),
    st.sampled_from([0.05, 0.5, 1e6]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 1000),
    st.integers(1, 3),
)
def test_clipped_sums_are_those_of_autograd_one_by_one(
    case: str,
    count: int,
    norm: float,
    order: int,
    isolated: bool,
    piece: int,
    seed: int,
    records: int,
) -> None:
    """For any number of examples, or of persons with records of their own number, in pieces of any
    size, in L1 and L2."""
    build, shape = CASES[case]
    torch.manual_seed(seed)
    module = build()
    inputs, targets = torch.randn(6, records, *shape), torch.randint(3, (6, records))
    if shape == WORDS:
        inputs = torch.randint(5, (6, records, *shape)).float()
    module(inputs[:, 0])  # lazy layers take their size
    clip = GradientClip(norm, order, per_example=True)
    job = job_of(module, inputs[:, 0], targets[:, 0], clip, isolated)
    way = example_way(job)
    assert isinstance(way, ExampleWay)
    gradients = ExampleGradients(job, CPU, replace(way, piece=piece))
    columns, shares = [inputs[:count], targets[:count]], None
    if records == 1:
        columns = [column[:, 0] for column in columns]
    else:  # the others fill up
        real = torch.arange(records) < torch.randint(1, records + 1, (count, 1))
        shares = real / real.sum(1, keepdim=True)
    found, losses = gradients(flatten(module), *columns, clip, shares)
    wanted = one_by_one(module, *columns, clip, shares)
    # Each example's gradient is off by some hundred roundings of its own length at most.
    scale = count * min(norm, 1e6) if norm < 1e6 else float(wanted.abs().sum())
    assert float((found.double() - wanted).abs().max()) <= 256 * 2.0**-24 * (scale + 1e-6)
    assert len(losses) == count
    # What is accounted for secret batches rests on sums in double precision.
    assert found.dtype is (torch.float64 if isolated else torch.float32)
    if norm < 1e6:
        each = float(torch.linalg.vector_norm(found.double(), ord=order))
        assert each <= count * norm * (1 + count * 2.0**-23)


@pytest.mark.parametrize("case", ["2-D", "known images", "lstm", "attention", "own parameter"])
@pytest.mark.parametrize("isolated", [True, False])
def test_an_example_that_is_not_finite_takes_nobody_with_it(case: str, isolated: bool) -> None:
    build, shape = CASES[case]
    torch.manual_seed(1)
    module = build()
    inputs, targets = torch.randn(5, *shape), torch.randint(3, (5,))
    module(inputs)
    clip = GradientClip(0.5, 2, per_example=True)
    job = job_of(module, inputs, targets, clip, isolated)
    way = example_way(job)
    assert isinstance(way, ExampleWay)
    gradients = ExampleGradients(job, CPU, way)
    others = torch.tensor([0, 1, 3, 4])
    wanted = one_by_one(module, inputs[others], targets[others], clip)
    for bad in (float("nan"), float("inf")):
        spoilt = inputs.clone()
        spoilt[2].view(-1)[0] = bad
        found, _ = gradients(flatten(module), spoilt, targets, clip)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-6)


class Refuses(nn.Module):
    """Raises at an example: a token that it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.output = nn.Embedding(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.output(self.table(x.long()).mean(1))
        return found


def test_an_example_at_which_a_layer_raises_counts_as_zero_if_isolated() -> None:
    torch.manual_seed(1)
    module, clip = Refuses(), GradientClip(0.5, 2, per_example=True)
    inputs, targets = torch.randint(4, (5, 2)).float(), torch.randint(3, (5,))
    job = job_of(module, inputs, targets, clip, isolated=True)
    way = example_way(job)
    assert isinstance(way, ExampleWay)
    wanted = one_by_one(module, inputs[1:], targets[1:], clip)
    inputs[0] = 9
    found, _ = ExampleGradients(job, CPU, way)(flatten(module), inputs, targets, clip)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(IndexError):
        ExampleGradients(replace(job, isolated=False), CPU, way)(
            flatten(module), inputs, targets, clip
        )


class Mixes(nn.Module):
    """Takes the mean of a batch away."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x)
        return scores - scores.mean(0) / 2


def test_no_code_of_a_module_mixes_examples() -> None:
    torch.manual_seed(1)
    module, clip = Mixes(), GradientClip(0.1, 2, per_example=True)
    inputs, targets = torch.randn(5, 4), torch.randint(3, (5,))
    job = job_of(module, inputs, targets, clip, isolated=True)
    way = example_way(job)
    assert isinstance(way, ExampleWay)
    found, _ = ExampleGradients(job, CPU, way)(flatten(module), inputs, targets, clip)
    wanted = one_by_one(module, inputs, targets, clip)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-6)


def test_layers_are_found_where_they_are_known() -> None:
    """Whatever is not known goes through `vmap`; only what cannot be batched goes one by one."""
    inputs, targets = torch.randn(3, 5, 8), torch.randint(3, (3,))
    clip = GradientClip(1.0, 2, per_example=True)

    def way(module: nn.Module, inputs: Tensor = inputs) -> ExampleWay | str:
        module(inputs)
        return example_way(job_of(module, inputs, targets, clip, isolated=False))

    for case in ("transformer", "lstm", "layer used twice"):
        found = way(CASES[case][0]())
        assert isinstance(found, ExampleWay)
        assert found.layers
    outside = way(CASES["weight used outside"][0](), torch.randn(3, 6))
    assert isinstance(outside, ExampleWay)
    assert not outside.layers
    assert isinstance(way(Network(nn.LSTM(8, 4, batch_first=True, proj_size=2))), str)


def test_images_of_one_channel_are_kept_with_channels_last() -> None:
    """In the other order torch's pooling and convolution take ten times as long."""
    layer = ConvolutionLayer(nn.Conv2d(1, 4, 3), {}, Tape(lambda *sizes: True, whole=True), True)
    (outputs,), _ = layer.run(torch.randn(2, 1, 1, 6, 6))
    assert outputs.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
