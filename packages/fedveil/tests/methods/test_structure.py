"""Certificates look at the program: the exact module, and what it does with examples."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.reference import FEATURES, federation
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedveil.core.errors import FedveilError
from fedveil.data.federation import Examples, Federation, Task
from fedveil.methods.dp_fedavg import dp_fedavg
from fedveil.methods.gradient_noise import gradient_noise
from fedveil.methods.parts.certificate import input_norm
from fedveil.methods.parts.gradient_noise import ConvexNoise, GradientNoise
from fedveil.methods.parts.isolation import check_isolation, known_apart
from fedveil.methods.parts.method import CohortRule, Scheme
from fedveil.planning.plan import Budget, plan
from fedveil.privacy.clipping import Clip
from fedveil.privacy.refusals import SensitivityRefused
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.engines.affine import affine_stack
from fedveil.training.models.flat import layout_of
from fedveil.training.models.images import ChannelsFirst
from fedveil.training.models.zoo import MODELS, BoundedInputs, Linear, build

DATA = federation(2, (6,) * 12)


class Wider(Linear):
    """Looks like a linear model, and is none."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * 50


class WiderLayer(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * 50


class LooseBound(BoundedInputs):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.sin()


def with_part(place: int, part: nn.Module) -> Linear:
    model = Linear(FEATURES, 2, 1.0)
    model[place] = part
    return model


def changed(change: Callable[[Linear], object]) -> Linear:
    model = Linear(FEATURES, 2, 1.0)
    change(model)
    return model


def tied(model: Linear) -> None:
    model[2].bias = model[2].weight  # type: ignore[assignment]


ALTERED: dict[str, Callable[[], nn.Module]] = {
    "a subclass": lambda: Wider(FEATURES, 2, 1.0),
    "a layer's subclass": lambda: with_part(2, WiderLayer(FEATURES, 2)),
    "a bound's subclass": lambda: with_part(1, LooseBound(1.0)),
    "another flattening": lambda: with_part(0, nn.Flatten(0)),
    "no bound": lambda: with_part(1, nn.Identity()),
    "an activation more": lambda: changed(lambda m: m.append(nn.ReLU())),
    "a layer more": lambda: changed(lambda m: m.append(nn.Linear(2, 2))),
    "a layer less": lambda: changed(lambda m: m.pop(2)),
    "a hook on the model": lambda: changed(
        lambda m: m.register_forward_hook(lambda *args: args[2] * 50)
    ),
    "a hook on a layer": lambda: changed(
        lambda m: m[2].register_forward_pre_hook(lambda _, args: (args[0] * 50,))
    ),
    "a hook on gradients": lambda: changed(
        lambda m: m[2].register_full_backward_hook(lambda *_: None)
    ),
    "a forward of its own": lambda: changed(
        lambda m: setattr(m, "forward", lambda x: x[:, :2] ** 3)
    ),
    "a layer's forward of its own": lambda: changed(
        lambda m: setattr(m[2], "forward", lambda x: x[:, :2] ** 3)
    ),
    "a parametrisation": lambda: changed(
        lambda m: parametrize.register_parametrization(m[2], "weight", Doubled())
    ),
    "a buffer": lambda: changed(lambda m: m.register_buffer("seen", torch.zeros(1))),
    "a parameter": lambda: changed(
        lambda m: m.register_parameter("scale", nn.Parameter(torch.ones(1)))
    ),
    "a frozen bias": lambda: changed(lambda m: m[2].bias.requires_grad_(False)),
    "no bias": lambda: with_part(2, nn.Linear(FEATURES, 2, bias=False)),
    "tied parameters": lambda: changed(tied),
    "more outputs than classes": lambda: with_part(2, nn.Linear(FEATURES, 3)),
    "double precision": lambda: changed(lambda m: m.double()),
    "a bound without end": lambda: changed(lambda m: setattr(m[1], "norm", math.inf)),
    "the same layers in a plain sequence": lambda: nn.Sequential(*Linear(FEATURES, 2, 1.0)),
    "wrapped": lambda: nn.Sequential(Linear(FEATURES, 2, 1.0)),
}


def test_the_linear_model_has_the_norm_that_it_enforces() -> None:
    model = Linear(FEATURES, 2, 1.5)
    for same in (model, copy.deepcopy(model), model.eval(), build_like(1.5)):
        assert input_norm(same, 2) == 1.5
    assert input_norm(model, 3) is None
    assert input_norm(Linear(FEATURES, 2), 2) is None


def build_like(norm: float) -> nn.Module:
    return build("logistic", DATA, input_norm=norm)


@pytest.mark.parametrize("make", ALTERED.values(), ids=ALTERED.keys())
def test_any_other_module_gets_no_certificate(make: Callable[[], nn.Module]) -> None:
    """Of a subclass or an appended layer it said that steps bring no two runs further apart."""
    model = make()
    assert input_norm(model, 2) is None
    local = LocalTraining(LearningRate(0.01), steps=4, batch_size=3)
    method = gradient_noise(
        rounds=2, cohort=CohortRule(Scheme.EVERYONE), local=local, clip_norm=0.5
    )
    try:
        planned = plan(method, DATA, model, budget=Budget(noise_multiplier=1.0), seed=1)
    except (FedveilError, RuntimeError):  # of a module that cannot be trained at all
        return
    assert type(planned.noise) is GradientNoise


def test_global_hooks_void_the_certificate() -> None:
    model = Linear(FEATURES, 2, 1.0)
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert input_norm(model, 2) is None
    finally:
        handle.remove()
    assert input_norm(model, 2) == 1.0


def test_sequences_have_no_certificate() -> None:
    local = LocalTraining(LearningRate(0.01), steps=4, batch_size=3)
    method = gradient_noise(
        rounds=2, cohort=CohortRule(Scheme.EVERYONE), local=local, clip_norm=0.5
    )
    planned = plan(
        method, DATA, Linear(FEATURES, 2, 1.0), budget=Budget(noise_multiplier=1.0), seed=1
    )
    assert planned.noise is not None
    assert type(planned.noise) is ConvexNoise
    sequence = replace(planned.noise.facts, federation=_as_sequence(DATA))
    assert type(planned.noise.fit(sequence)) is GradientNoise


def _as_sequence(data: Federation) -> Federation:
    federation = copy.copy(data)
    object.__setattr__(federation, "task", Task.SEQUENCE)
    return federation


# ---- closed forms -------------------------------------------------------------------------


class Mixed(nn.Flatten):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).mean(dim=0, keepdim=True).expand(len(inputs), -1)


def test_closed_forms_are_for_layers_as_they_are_written() -> None:
    relu = nn.ReLU()
    twice = nn.Linear(FEATURES, FEATURES)
    for model in (
        nn.Sequential(Mixed(), nn.Linear(FEATURES, 2)),
        nn.Sequential(nn.Flatten(), WiderLayer(FEATURES, 2)),
        nn.Sequential(nn.Flatten(), twice, relu, twice),
        changed(lambda m: setattr(m[2], "forward", lambda x: x)),
        changed(lambda m: setattr(m, "forward", lambda x: x)),
    ):
        assert isinstance(affine_stack(model, layout_of(model), DATA), str)
    shared = nn.Sequential(nn.Linear(FEATURES, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))
    stack = affine_stack(shared, layout_of(shared), DATA)
    assert not isinstance(stack, str)
    assert [layer.activation for layer in stack] == ["relu", "relu", "none"]


# ---- examples and clients apart -----------------------------------------------------------


class BatchMean(nn.Module):
    """Couples examples without being any known normalisation."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - 0.1 * inputs.mean(dim=0, keepdim=True)


class FaintMean(nn.Module):
    """Couples examples by next to nothing, until somebody brings a record of 1e30."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - 1e-9 * inputs.mean(dim=0, keepdim=True)


class Neighbour(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + inputs.roll(1, dims=0)


class Counter(nn.Module):
    """Remembers what it saw, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += inputs.detach().sum()
        return inputs


class Secret(nn.Module):
    """Remembers what it saw where no list of buffers shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        before, self.last = self.last, float(inputs.detach().mean())
        return inputs + before


class Moody(nn.Module):
    """Draws from a generator that nobody can set."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng(1)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * float(self.draw.random())


class _Fades(torch.autograd.Function):
    """The identity, whose gradient grows weaker with every step that anybody took."""

    steps = 0

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> Tensor:
        _Fades.steps += 1
        return error * 0.9**_Fades.steps


class Fades(nn.Module):
    """Remembers on the way back only, and where no copy of the module forgets it."""

    def forward(self, inputs: Tensor) -> Tensor:
        return _Fades.apply(inputs)


class _Shares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        return error / (1 + inputs.norm())


class Shares(nn.Module):
    """Mixes the examples of a batch on the way back only."""

    def forward(self, inputs: Tensor) -> Tensor:
        return _Shares.apply(inputs)


class Chooses(nn.Module):
    """Which weights learn depends on the other examples of the batch; the outputs do not."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        if float(inputs.detach().min()) >= 0:
            return inputs
        return inputs + self.shift - self.shift.detach()


class Offset(nn.Module):
    """Has a buffer, and leaves it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.offset


def network(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 4), layer, nn.Linear(4, 2))


COUPLED = {
    "batch mean": BatchMean,
    "faint mean": FaintMean,
    "neighbour": Neighbour,
    "on the way back": Shares,
    "batch norm": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "running batch norm": lambda: nn.BatchNorm1d(4),
}
STATEFUL = {
    "buffer": Counter,
    "attribute": Secret,
    "own randomness": Moody,
    "on the way back": Fades,
    "running batch norm": lambda: nn.BatchNorm1d(4),
}
APART: dict[str, Callable[[], nn.Module]] = {
    "nothing": nn.Identity,
    "dropout": lambda: nn.Dropout(0.5),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "layer norm": lambda: nn.LayerNorm(4),
    "constant buffer": Offset,
}


@pytest.mark.parametrize("layer", COUPLED.values(), ids=COUPLED.keys())
def test_models_that_mix_examples_are_refused_for_records(layer: Callable[[], nn.Module]) -> None:
    with pytest.raises(SensitivityRefused, match="mixes the examples"):
        check_isolation(network(layer()), DATA, per_example=True)


def test_which_weights_learn_must_not_depend_on_other_examples() -> None:
    with pytest.raises(SensitivityRefused, match="mixes the examples"):
        check_isolation(
            nn.Sequential(nn.Flatten(), Chooses(), nn.Linear(FEATURES, 2)), DATA, per_example=True
        )


def test_an_example_is_watched_beside_others_that_are_no_two_alike() -> None:
    """What shows between two neighbours of the watched example needs two different ones."""
    seen: list[Tensor] = []
    model = network(nn.Identity())
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    check_isolation(model, DATA, per_example=True)
    far = [batch for batch in seen if bool((batch[1:] < 0).all() & (batch[0] > 0).all())]
    assert far
    for batch in far:
        assert len(batch.flatten(1).unique(dim=0)) == len(batch)


def _hooked(model: nn.Sequential) -> None:
    model[1].register_full_backward_hook(lambda *args: None)


def _shadowed(model: nn.Sequential) -> None:
    vars(model[1])["weight"] = model[1].weight.detach()


def _watched(model: nn.Sequential) -> None:
    model.forward = model.forward


class Softened(nn.Parameter):
    """May compute anything with what it meets."""


def _strange(model: nn.Sequential) -> None:
    model[1].weight = Softened(model[1].weight.detach())


def _whole_batches(model: nn.Sequential) -> None:
    model[0] = nn.Flatten(0)


def _parametrised(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[1])


def _counting(model: nn.Sequential) -> None:
    model[1].register_buffer("seen", torch.zeros(()))


def _foreign(model: nn.Sequential) -> None:
    model[1] = type("Own", (nn.Linear,), {})(FEATURES, 2)


TOUCHED = (_hooked, _shadowed, _watched, _strange, _whole_batches)
TOUCHED += (_parametrised, _counting, _foreign)


@pytest.mark.parametrize("touch", TOUCHED)
def test_only_chains_of_plain_layers_are_known_without_a_trial(
    touch: Callable[[nn.Sequential], None],
) -> None:
    for name in ("logistic", "mlp"):
        model = build(name, DATA)
        assert known_apart(model)
        assert known_apart(copy.deepcopy(model))
        touch(model)
        assert not known_apart(model)
    assert not known_apart(network(nn.BatchNorm1d(4)))


@pytest.mark.parametrize("layer", STATEFUL.values(), ids=STATEFUL.keys())
@pytest.mark.parametrize("per_example", [True, False])
def test_models_that_remember_are_refused_for_anybody(
    layer: Callable[[], nn.Module], per_example: bool
) -> None:
    with pytest.raises(SensitivityRefused):
        check_isolation(network(layer()), DATA, per_example)


@pytest.mark.parametrize("layer", APART.values(), ids=APART.keys())
@pytest.mark.parametrize("per_example", [True, False])
def test_models_that_keep_examples_apart_are_not_refused(
    layer: Callable[[], nn.Module], per_example: bool
) -> None:
    model = network(layer())
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    check_isolation(model, DATA, per_example)
    assert torch.equal(state, torch.random.get_rng_state())  # nobody else's draws move
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_within_a_client_examples_may_be_mixed() -> None:
    check_isolation(network(BatchMean()), DATA, per_example=False)


def test_a_model_that_cannot_be_tried_is_refused() -> None:
    class Picky(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            raise ValueError("not with these inputs")

    with pytest.raises(SensitivityRefused, match="not with these inputs"):
        check_isolation(network(Picky()), DATA, per_example=False)


class Solves(nn.Module):
    """Fails on numbers that are too large to be multiplied."""

    def forward(self, inputs: Tensor) -> Tensor:
        square = inputs[:, :, None] * inputs[:, None, :] + torch.eye(inputs.shape[1])
        return torch.linalg.cholesky(square)[:, 0]


def test_a_model_that_some_record_would_stop_is_refused() -> None:
    """A run that ends because of what one record holds tells that it was there."""
    draw = np.random.default_rng(0)
    tokens = _like(draw.integers(0, 50, size=(8, 6)), 1000)
    text = replace(tokens, task=Task.SEQUENCE, verified=True)
    with pytest.raises(SensitivityRefused, match="made-up inputs"):
        check_isolation(nn.Sequential(nn.Embedding(100, 4), nn.Linear(4, 1000)), text, False)
    check_isolation(nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1000)), text, False)
    with pytest.raises(SensitivityRefused, match="made-up inputs"):
        check_isolation(nn.Sequential(Solves(), nn.Linear(FEATURES, 2)), DATA, False)


class Centred:
    """A scaling of somebody's own that looks at all records it is given."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        return inputs - inputs.mean(axis=0)


class CentredFederation(Federation):
    def model_inputs(self, inputs: np.ndarray) -> np.ndarray:
        return inputs - inputs.mean(axis=0)


class CentredColumn(np.ndarray):
    def __getitem__(self, rows: object) -> np.ndarray:
        found = np.asarray(self)[rows]
        return found - found.mean(axis=0)


@pytest.mark.parametrize(
    "data",
    [
        replace(DATA, scaling=Centred()),  # type: ignore[arg-type]
        CentredFederation(DATA.train, DATA.offsets, DATA.test, DATA.task, DATA.classes),
        replace(
            DATA,
            train=Examples(DATA.train.inputs.view(CentredColumn), DATA.train.targets),
            verified=True,
        ),
    ],
    ids=["scaling", "federation", "column"],
)
def test_nothing_is_certified_of_somebodys_own_way_from_the_records_to_the_model(
    data: Federation,
) -> None:
    local = LocalTraining(LearningRate(0.1), steps=1, batch_size=3)
    method = gradient_noise(
        rounds=1, cohort=CohortRule(Scheme.EVERYONE), local=local, clip_norm=1.0
    )
    own = plan(method, DATA, Linear(FEATURES, 2), budget=Budget(noise_multiplier=1.0))
    assert own.guarantee is not None
    assert own.guarantee.certified
    planned = plan(method, data, Linear(FEATURES, 2), budget=Budget(noise_multiplier=1.0))
    assert planned.guarantee is not None
    assert not planned.guarantee.certified
    assert "Centred" in planned.guarantee.reason


@pytest.mark.parametrize("layer", [Counter, Secret], ids=["buffer", "attribute"])
def test_no_plan_is_made_for_a_model_that_remembers(layer: Callable[[], nn.Module]) -> None:
    method = dp_fedavg(
        rounds=2,
        cohort=CohortRule(Scheme.EVERYONE),
        local=LocalTraining(LearningRate(0.1), steps=1),
        clip=Clip(1.0),
    )
    with pytest.raises(SensitivityRefused, match="remembers"):
        plan(method, DATA, network(layer()), budget=Budget(epsilon=4.0))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_our_own_models_keep_examples_apart(name: str) -> None:
    draw = np.random.default_rng(0)
    if name == "lstm":
        data = replace(_like(draw.integers(0, 5, size=(8, 6)), 5), task=Task.SEQUENCE)
    elif name == "linear":
        data = _like(draw.random((8, FEATURES)).astype(np.float32), 0)
    elif isinstance(build_or_none(name), ChannelsFirst):
        data = _like(draw.random((8, 28, 28)).astype(np.float32), 3)
    else:
        data = _like(draw.random((8, FEATURES)).astype(np.float32), 3)
    check_isolation(build(name, data), data, per_example=True)


def build_or_none(name: str) -> nn.Module | None:
    data = _like(np.zeros((8, 28, 28), dtype=np.float32), 3)
    try:
        return build(name, data)
    except FedveilError:
        return None


def _like(inputs: np.ndarray, classes: int) -> Federation:
    targets = np.zeros(len(inputs), dtype=np.int64 if classes else np.float32)
    examples = Examples(inputs, targets)
    task = Task.CLASSIFICATION if classes else Task.REGRESSION
    return Federation(examples, np.array([0, 4, 8]), examples, task, classes)


class Diary(nn.Module):
    """Adds up its outputs: of zeros, as a fresh linear model gives them, nothing is seen."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        self.seen = self.seen + outputs.detach().sum()
        return outputs + self.seen


class Centred(nn.Module):
    """Takes off the mean of a batch: of zeros it is zero."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        return outputs - outputs.mean(dim=0)


@pytest.mark.parametrize("layer", [Diary, Centred], ids=["memory", "mixing"])
def test_weights_that_start_at_zero_hide_nothing(layer: Callable[[nn.Module], nn.Module]) -> None:
    linear = build("logistic", DATA)
    with torch.no_grad():
        for weight in linear.parameters():
            weight.zero_()
    with pytest.raises(SensitivityRefused):
        check_isolation(layer(linear), DATA, per_example=True)
