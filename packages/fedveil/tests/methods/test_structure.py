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

import fedveil as fv
from fedveil.methods.parts.certificate import input_norm
from fedveil.methods.parts.gradient_noise import ConvexNoise
from fedveil.methods.parts.isolation import check_isolation, known_apart
from fedveil.privacy.refusals import SensitivityRefused
from fedveil.training.engines.affine import affine_stack
from fedveil.training.models.flat import layout_of
from fedveil.training.models.zoo import MODELS, BoundedInputs, Linear

DATA = federation(2, (6,) * 12)


STEPS = fv.gradient_noise(
    rounds=2,
    cohort=fv.CohortRule(fv.Scheme.EVERYONE),
    local=fv.LocalTraining(fv.LearningRate(0.01), steps=4, batch_size=3),
    clip_norm=0.5,
)
BUDGET = fv.Budget(noise_multiplier=1.0)


def own(forward: Callable, base: type[nn.Module] = nn.Module) -> type[nn.Module]:
    """A class of somebody's own, with this way forward."""
    return type("Own", (base,), {"forward": forward})


# Looks like a linear model, and is none.
Wider = own(lambda self, x: Linear.forward(self, x) * 50, Linear)
WiderLayer = own(lambda self, x: nn.Linear.forward(self, x) * 50, nn.Linear)
LooseBound = own(lambda self, x: x, BoundedInputs)
Doubled = own(lambda self, weight: weight.sin())


def part(place: int, new: nn.Module) -> Callable[[Linear], object]:
    return lambda model: model.__setitem__(place, new)


def tied(model: Linear) -> None:
    model[2].bias = model[2].weight


def set_forward(module: nn.Module) -> None:
    module.forward = lambda x: x[:, :2] ** 3  # type: ignore[method-assign]


# What is done to a linear model, or made of it.
ALTERED: dict[str, Callable[[Linear], object]] = {
    "a subclass": lambda m: Wider(FEATURES, 2, 1.0),
    "a layer's subclass": part(2, WiderLayer(FEATURES, 2)),
    "a bound's subclass": part(1, LooseBound(1.0)),
    "another flattening": part(0, nn.Flatten(0)),
    "no bound": part(1, nn.Identity()),
    "an activation more": lambda m: m.append(nn.ReLU()),
    "a layer more": lambda m: m.append(nn.Linear(2, 2)),
    "a layer less": lambda m: m.pop(2),
    "a hook on the model": lambda m: m.register_forward_hook(lambda *args: args[2] * 50),
    "a hook on a layer": lambda m: m[2].register_forward_pre_hook(lambda _, x: (x[0] * 50,)),
    "a hook on gradients": lambda m: m[2].register_full_backward_hook(lambda *_: None),
    "a forward of its own": set_forward,
    "a layer's forward of its own": lambda m: set_forward(m[2]),
    "a parametrisation": lambda m: parametrize.register_parametrization(m[2], "weight", Doubled()),
    "a shadowed weight": lambda m: vars(m[2]).update(weight=m[2].weight.detach()),
    "a buffer": lambda m: m.register_buffer("seen", torch.zeros(1)),
    "a parameter": lambda m: m.register_parameter("scale", nn.Parameter(torch.ones(1))),
    "a frozen bias": lambda m: m[2].bias.requires_grad_(False),
    "no bias": part(2, nn.Linear(FEATURES, 2, bias=False)),
    "tied parameters": tied,
    "more outputs than classes": part(2, nn.Linear(FEATURES, 3)),
    "double precision": lambda m: m.double(),
    "a bound without end": lambda m: setattr(m[1], "norm", math.inf),
    "a child of a layer": lambda m: m[2].add_module("child", nn.Flatten()),
    "the same layers in a plain sequence": lambda m: nn.Sequential(*m),
    "wrapped": lambda m: nn.Sequential(m),
}


def altered(change: Callable[[Linear], object]) -> nn.Module:
    model = Linear(FEATURES, 2, 1.0)
    made = change(model)
    return made if isinstance(made, nn.Module) and not isinstance(made, nn.ReLU) else model


def test_the_linear_model_has_the_norm_that_it_enforces():
    model = Linear(FEATURES, 2, 1.5)
    for same in (model, copy.deepcopy(model), fv.build("logistic", DATA, input_norm=1.5)):
        assert input_norm(same, 2) == 1.5
    assert input_norm(model, 3) is None
    assert input_norm(Linear(FEATURES, 2), 2) is None


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED.keys())
def test_any_other_module_gets_no_certificate(change):
    """Of a subclass or an appended layer it said that steps bring no two runs further apart."""
    model = altered(change)
    assert input_norm(model, 2) is None
    try:
        planned = fv.plan(STEPS, DATA, model, budget=BUDGET, seed=1)
    except (fv.FedveilError, RuntimeError):  # of a module that cannot be trained at all
        return
    assert type(planned.noise) is fv.GradientNoise


def test_global_hooks_void_the_certificate():
    model = Linear(FEATURES, 2, 1.0)
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert input_norm(model, 2) is None
    finally:
        handle.remove()
    assert input_norm(model, 2) == 1.0


def test_sequences_have_no_certificate():
    planned = fv.plan(STEPS, DATA, Linear(FEATURES, 2, 1.0), budget=BUDGET, seed=1)
    assert type(planned.noise) is ConvexNoise
    sequence = copy.copy(DATA)
    object.__setattr__(sequence, "task", fv.Task.SEQUENCE)
    fitted = planned.noise.fit(replace(planned.noise.facts, federation=sequence))
    assert type(fitted) is fv.GradientNoise


# ---- closed forms -------------------------------------------------------------------------


Mixed = own(lambda self, x: x.flatten(1).mean(0, keepdim=True).expand(len(x), -1), nn.Flatten)


def test_closed_forms_are_for_layers_as_they_are_written():
    relu = nn.ReLU()
    twice = nn.Linear(FEATURES, FEATURES)
    for model in (
        nn.Sequential(Mixed(), nn.Linear(FEATURES, 2)),
        nn.Sequential(nn.Flatten(), WiderLayer(FEATURES, 2)),
        nn.Sequential(nn.Flatten(), twice, relu, twice),
        altered(set_forward),
        altered(ALTERED["a layer's forward of its own"]),
    ):
        assert isinstance(affine_stack(model, layout_of(model), DATA), str)
    shared = nn.Sequential(nn.Linear(FEATURES, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))
    stack = affine_stack(shared, layout_of(shared), DATA)
    assert not isinstance(stack, str)
    assert [layer.activation for layer in stack] == ["relu", "relu", "none"]


# ---- examples and clients apart -----------------------------------------------------------


BatchMean = own(lambda self, x: x - 0.1 * x.mean(0, keepdim=True))  # no known normalisation
FaintMean = own(lambda self, x: x - 1e-9 * x.mean(0, keepdim=True))  # until a record has 1e30
Neighbour = own(lambda self, x: x + x.roll(1, dims=0))


class Counter(nn.Module):
    """Remembers what it saw, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += inputs.detach().sum()
        return inputs + 0 * self.seen


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


# Remembers on the way back only, and where no copy of the module forgets it.
Fades = own(lambda self, x: _Fades.apply(x))


class _Shares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        return error / (1 + inputs.norm())


Shares = own(lambda self, x: _Shares.apply(x))  # mixes examples on the way back only


class Chooses(nn.Module):
    """Which weights learn depends on the other examples of the batch; the outputs do not."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        if float(inputs.detach().min()) >= 0:
            return inputs
        return inputs + self.shift - self.shift.detach()


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
    "own randomness": Moody,
    "on the way back": Fades,
    "running batch norm": lambda: nn.BatchNorm1d(4),
}
APART: dict[str, Callable[[], nn.Module]] = {
    "nothing": nn.Identity,
    "dropout": lambda: nn.Dropout(0.5),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "layer norm": lambda: nn.LayerNorm(4),
}


@pytest.mark.parametrize("layer", COUPLED.values(), ids=COUPLED.keys())
def test_models_that_mix_examples_are_refused_for_records(layer):
    with pytest.raises(SensitivityRefused, match="mixes"):
        check_isolation(network(layer()), DATA, per_example=True)
    chooses = nn.Sequential(nn.Flatten(), Chooses(), nn.Linear(FEATURES, 2))
    with pytest.raises(SensitivityRefused, match="mixes"):
        check_isolation(chooses, DATA, per_example=True)


def test_a_model_draws_nothing_where_one_person_may_have_more_records():
    """Each record more would change what is drawn for all that follow."""
    model = network(nn.Dropout(0.01))
    check_isolation(model, DATA, per_example=True)
    check_isolation(network(nn.Identity()), DATA, per_example=True, per_person=True)
    with pytest.raises(SensitivityRefused, match="draws"):
        check_isolation(model, DATA, per_example=True, per_person=True)


@pytest.mark.parametrize("layer", STATEFUL.values(), ids=STATEFUL.keys())
@pytest.mark.parametrize("per_example", [True, False])
def test_models_that_remember_are_refused_for_anybody(layer, per_example):
    with pytest.raises(SensitivityRefused):
        check_isolation(network(layer()), DATA, per_example)


@pytest.mark.parametrize("layer", APART.values(), ids=APART.keys())
@pytest.mark.parametrize("per_example", [True, False])
def test_models_that_keep_examples_apart_are_not_refused(layer, per_example):
    model = network(layer())
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    check_isolation(model, DATA, per_example)
    assert torch.equal(state, torch.random.get_rng_state())  # nobody else's draws move
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_within_a_client_examples_may_be_mixed():
    check_isolation(network(BatchMean()), DATA, per_example=False)


def solved(self: nn.Module, inputs: Tensor) -> Tensor:
    """Fails on numbers that are too large to be multiplied."""
    square = inputs[:, :, None] * inputs[:, None, :] + torch.eye(inputs.shape[1])
    return torch.linalg.cholesky(square)[:, 0]


def test_a_model_that_some_record_would_stop_is_refused():
    """A run that ends because of what one record holds tells that it was there."""
    draw = np.random.default_rng(0)
    tokens = _like(draw.integers(0, 50, size=(8, 6)), 1000)
    text = replace(tokens, task=fv.Task.SEQUENCE, verified=True)
    with pytest.raises(SensitivityRefused, match="made-up"):
        check_isolation(nn.Sequential(nn.Embedding(100, 4), nn.Linear(4, 1000)), text, False)
    check_isolation(nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1000)), text, False)
    with pytest.raises(SensitivityRefused, match="made-up"):
        check_isolation(nn.Sequential(own(solved)(), nn.Linear(FEATURES, 2)), DATA, False)


class Centred:
    """A scaling of somebody's own that looks at all records it is given."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        return inputs - inputs.mean(axis=0)


class CentredFederation(fv.Federation):
    def model_inputs(self, inputs: np.ndarray) -> np.ndarray:
        return inputs - inputs.mean(axis=0)


class CentredColumn(np.ndarray):
    def __getitem__(self, rows: object) -> np.ndarray:
        found = np.asarray(self)[rows]
        return found - found.mean(axis=0)


@pytest.mark.parametrize(
    "data",
    [
        replace(DATA, scaling=Centred()),
        CentredFederation(DATA.train, DATA.offsets, DATA.test, DATA.task, DATA.classes),
        replace(
            DATA,
            train=fv.Examples(DATA.train.inputs.view(CentredColumn), DATA.train.targets),
            verified=True,
        ),
    ],
    ids=["scaling", "federation", "column"],
)
def test_nothing_is_certified_of_somebodys_own_way_from_the_records_to_the_model(data):
    method = replace(STEPS, local=replace(STEPS.local, steps=1))
    assert fv.plan(method, DATA, Linear(FEATURES, 2), budget=BUDGET).guarantee.certified
    planned = fv.plan(method, data, Linear(FEATURES, 2), budget=BUDGET)
    assert not planned.guarantee.certified
    assert "Centred" in planned.guarantee.reason


LARGE = pytest.param("resnet18", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*sorted(set(MODELS) - {"resnet18"}), LARGE])
def test_our_own_models_keep_examples_apart(name):
    draw = np.random.default_rng(0)
    shape = (8, 28, 28) if "cnn" in name or "resnet" in name else (8, FEATURES)
    data = _like(draw.random(shape).astype(np.float32), 0 if name == "linear" else 3)
    if name == "lstm":
        data = replace(_like(draw.integers(0, 5, size=(8, 6)), 5), task=fv.Task.SEQUENCE)
    check_isolation(fv.build(name, data), data, per_example=True)


def _like(inputs: np.ndarray, classes: int) -> fv.Federation:
    targets = np.zeros(len(inputs), dtype=np.int64 if classes else np.float32)
    examples = fv.Examples(inputs, targets)
    task = fv.Task.CLASSIFICATION if classes else fv.Task.REGRESSION
    return fv.Federation(examples, np.array([0, 4, 8]), examples, task, classes)


Lowered = own(lambda self, x: x - x.mean(dim=0))  # of zeros the mean is zero


@pytest.mark.parametrize("layer", [Counter, Lowered], ids=["memory", "mixing"])
def test_weights_that_start_at_zero_hide_nothing(layer):
    linear = fv.build("logistic", DATA)
    with torch.no_grad():
        for weight in linear.parameters():
            weight.zero_()
    with pytest.raises(SensitivityRefused):
        check_isolation(nn.Sequential(linear, layer()), DATA, per_example=True)


TOUCHED = {
    "hooked": lambda m: m[1].register_full_backward_hook(lambda *args: None),
    "shadowed": lambda m: vars(m[1]).update(weight=m[1].weight.detach()),
    "watched": lambda m: setattr(m, "forward", m.forward),
    "strange": lambda m: setattr(m[1], "weight", Softened(m[1].weight.detach())),
    "whole batches": lambda m: m.__setitem__(0, nn.Flatten(0)),
    "parametrised": lambda m: nn.utils.parametrizations.weight_norm(m[1]),
    "counting": lambda m: m[1].register_buffer("seen", torch.zeros(())),
    "foreign": lambda m: m.__setitem__(1, type("Own", (nn.Linear,), {})(FEATURES, 2)),
}


def with_part(place: int, part: nn.Module) -> Linear:
    model = Linear(FEATURES, 2, 1.0)
    model[place] = part
    return model


def changed(change: Callable[[Linear], object]) -> Linear:
    model = Linear(FEATURES, 2, 1.0)
    change(model)
    return model


def build_like(norm: float) -> nn.Module:
    return fv.build("logistic", DATA, input_norm=norm)


class Secret(nn.Module):
    """Remembers what it saw where no list of buffers shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        before, self.last = self.last, float(inputs.detach().mean())
        return inputs + before


class Offset(nn.Module):
    """Has a buffer, and leaves it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.offset


def test_which_weights_learn_must_not_depend_on_other_examples():
    with pytest.raises(SensitivityRefused, match="mixes"):
        check_isolation(
            nn.Sequential(nn.Flatten(), Chooses(), nn.Linear(FEATURES, 2)), DATA, per_example=True
        )


def test_an_example_is_watched_beside_others_that_are_no_two_alike():
    """What shows between two neighbours of the watched example needs two different ones."""
    seen: list[Tensor] = []
    model = network(nn.Identity())
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    check_isolation(model, DATA, per_example=True)
    far = [batch for batch in seen if bool((batch[1:] < 0).all() & (batch[0] > 0).all())]
    assert far
    for batch in far:
        assert len(batch.flatten(1).unique(dim=0)) == len(batch)


class Softened(nn.Parameter):
    """May compute anything with what it meets."""


@pytest.mark.parametrize("touch", TOUCHED.values(), ids=TOUCHED.keys())
def test_only_chains_of_plain_layers_are_known_without_a_trial(touch):
    for name in ("logistic", "mlp"):
        model = fv.build(name, DATA)
        assert known_apart(model)
        assert known_apart(copy.deepcopy(model))
        touch(model)
        assert not known_apart(model)
    assert not known_apart(network(nn.BatchNorm1d(4)))


@pytest.mark.parametrize("layer", [Counter, Secret], ids=["buffer", "attribute"])
def test_no_plan_is_made_for_a_model_that_remembers(layer):
    common = {
        "rounds": 2,
        "cohort": STEPS.cohort,
        "local": fv.LocalTraining(fv.LearningRate(0.1), 1),
    }
    method = fv.dp_fedavg(**common, clip=fv.Clip(1.0))
    with pytest.raises(SensitivityRefused, match="remembers"):
        fv.plan(method, DATA, network(layer()), budget=fv.Budget(epsilon=4.0))


def build_or_none(name: str) -> nn.Module | None:
    data = _like(np.zeros((8, 28, 28), dtype=np.float32), 3)
    try:
        return fv.build(name, data)
    except fv.FedveilError:
        return None


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
