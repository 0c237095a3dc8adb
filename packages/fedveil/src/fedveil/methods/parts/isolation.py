"""Whether a model keeps examples apart: tried on made-up inputs, since any module may be trained.
A chain of affine layers is known to, and is not tried.

A model that remembers what it saw (running statistics, a counter) carries one client's data into
another's update. One whose layers mix the examples of a batch lets one record move every example's
gradient. Both show when the same example comes in other company.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation, Task
from fedveil.privacy.refusals import SensitivityRefused
from fedveil.training.models.check import token_limit
from fedveil.training.models.losses import ClassWeights, Loss
from fedveil.training.models.structure import as_written, drawing_from
from fedveil.training.models.tensors import as_tensor
from fedveil.training.models.zoo import Linear, Mlp

_OTHERS = 2  # examples beside the one that is watched
_SCALES = (1.0, 0.0, 1e30, -7.0)  # of the company it is in: what mixes little shows beside much
_STIR = 0.1  # how far weights are moved from where they start
_LONGEST = 256  # examples of a made-up batch, at most
_SEED = 7  # of made-up inputs, and of layers that draw, such as dropout
_PLAIN = {
    type(part): vars(part).keys()
    for chain in (Linear(1, 1, 1.0), Mlp(1, (1,), 1), nn.Sequential(nn.Tanh(), nn.Identity()))
    for part in chain.modules()
}


def check_isolation(
    module: nn.Module, federation: Federation, per_example: bool, *, per_person: bool = False
) -> None:
    """Refuse a model that lets one unit's data into what is computed of others.

    It is tried as it is and with other weights: of weights that are zero at first, nothing shows.

    Args:
        module: The model.
        federation: The data, of which shapes and types are used.
        per_example: Examples are clipped one by one, so none may move another's gradient.
        per_person: Persons are, with any number of examples each.

    Raises:
        SensitivityRefused: The model remembers, mixes examples that are clipped one by one, or
            draws at random where persons are.
    """
    if known_apart(module):
        return
    model = copy.deepcopy(module).train()
    with drawing_from(_SEED):
        before = torch.default_generator.get_state()
        if per_person:
            model(_batch(federation, np.random.default_rng(_SEED), 1.0))
        draws = not torch.equal(before, torch.default_generator.get_state())
    if draws:
        raise SensitivityRefused(
            "a model that draws at random (dropout, say) where persons are protected: how many "
            "records one has decides what is drawn for the others",
            "use a model without dropout",
        )
    _try(copy.deepcopy(module).train(), federation, per_example)
    model = copy.deepcopy(module).train()
    draw = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():  # as training might leave them, none of them zero
        for weight in model.parameters():
            if weight.is_floating_point():
                weight.add_(torch.randn(weight.shape, generator=draw).to(weight), alpha=_STIR)
    _try(model, federation, per_example)


def known_apart(module: nn.Module) -> bool:
    """Whether it is a chain of layers that treat examples one by one and keep nothing, each with
    what its class gives it and nothing else."""
    for part in module.modules():
        if vars(part).keys() != _PLAIN.get(type(part)) or not as_written(part) or part._buffers:
            return False
        if any(type(own) not in (nn.Parameter, type(None)) for own in part._parameters.values()):
            return False
        if isinstance(part, nn.Flatten) and part.start_dim != 1:
            return False
    return True


def check_loss(
    loss: Loss | None, module: nn.Module, federation: Federation, batch_size: int | None = None
) -> None:
    """Try a loss on made-up examples, forwards and backwards through the model.

    In a protected run, a loss that raises counts as zero and nobody is told. A mistake in it must
    therefore show before any record is read.

    Args:
        loss: The loss of somebody's own; None is the task's.
        module: The model.
        federation: The data, of which shapes and types are used.
        batch_size: Examples in one step; None for all of a client's.

    Raises:
        ConfigError: The loss raises, or does not give one number with a gradient for each example.
        SensitivityRefused: The loss mixes examples or remembers them.
    """
    if loss is None:
        return
    if type(loss) is ClassWeights:
        classifies = federation.task in (Task.CLASSIFICATION, Task.MULTI_LABEL)
        if not classifies or len(loss.weights) != federation.classes:
            raise ConfigError(
                f"class weights: {len(loss.weights)} of them, and the data have "
                f"{federation.classes or 'no'} classes"
            )
        return
    draw = np.random.default_rng(_SEED)
    shape = (1 + _OTHERS, *federation.train.targets.shape[1:])
    like = _tried(copy.deepcopy(module), _batch(federation, draw, 1.0), False)[0]
    for scale in (1.0, 30.0):
        outputs = torch.from_numpy(scale * draw.standard_normal(like.shape)).to(like)
        targets = as_tensor(_targets(federation, draw, shape))
        together = _lost(loss, outputs, targets)
        again = _lost(loss, outputs, targets)
        singles = [_lost(loss, outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))]
        if not (_same(together, again) and _same(together, torch.cat(singles))):
            raise SensitivityRefused(
                "the loss of one example depends on others of its batch, on what was seen before, "
                "or on chance, so one client's data could enter another's update",
                "give one number for each example, made of its output and target alone",
            )
    model = copy.deepcopy(module).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    for size in sorted({1, 2, 7, min(batch_size or 32, _LONGEST)}):
        inputs = _batch(federation, draw, 1.0, size)
        targets = as_tensor(_targets(federation, draw, (size, *shape[1:])))
        with drawing_from(_SEED):
            _lost(loss, model(inputs), targets, trained)


def _targets(federation: Federation, draw: np.random.Generator, shape: tuple[int, ...]) -> Any:
    kind = federation.train.targets.dtype
    if federation.task is Task.REGRESSION:
        return draw.standard_normal(shape).astype(kind)
    return draw.integers(0, federation.codes, shape).astype(kind)


def _lost(loss: Loss, outputs: Tensor, targets: Tensor, back: Sequence[Tensor] = ()) -> Tensor:
    """Return the losses of some examples; with `back`, after a step to these weights."""
    try:
        found = loss(outputs if back else outputs.clone().requires_grad_(), targets.clone())
        if back and isinstance(found, Tensor) and found.requires_grad:
            torch.autograd.grad(found.sum(), back, allow_unused=True)
    except Exception as error:  # whatever a user's function may raise
        raise ConfigError(
            f"loss: it fails on outputs {list(outputs.shape)} and targets {list(targets.shape)}: "
            f"{_said(error)}"
        ) from None
    if not isinstance(found, Tensor) or found.shape != (len(outputs),):
        shape = list(getattr(found, "shape", ())) or type(found).__name__
        raise ConfigError(
            f"loss: must give one number for each example, as losses of torch do with "
            f"reduction='none'; of {len(outputs)} examples it gives {shape}"
        )
    if not found.requires_grad:
        raise ConfigError("loss: has no gradient; compute it from the outputs with torch")
    return found.detach().clone()


def _try(model: nn.Module, federation: Federation, per_example: bool) -> None:
    draw = np.random.default_rng(_SEED)
    watched, *company = (_batch(federation, draw, scale) for scale in (1.0, *_SCALES))
    before = _state(model)
    alone, moved = _tried(model, watched)
    for extreme in _extremes(federation, model):
        _tried(model, extreme, False)  # whose record would end the run, would be known by that
    for others in company:
        last = others is company[-1]
        mixed = watched.clone()
        mixed[1:] = others[1:]
        beside, pull = _tried(model, mixed, last)
        same = _same(alone[:1], beside[:1]) and (not last or _same(moved, pull))
        if per_example and not same:
            raise SensitivityRefused(
                "per-example clipping with a model that mixes the examples of a batch (batch "
                "normalisation, say): one record moves every example's gradient",
                "use group or layer normalisation",
            )
    after = _state(model)
    kept = before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    again, pull = _tried(model, watched)
    if not kept or not _same(alone, again) or not _same(moved, pull):
        raise SensitivityRefused(
            "the model remembers what it was shown (running statistics, or its own randomness), "
            "so one client's data would enter another's update",
            "use layers without state, such as group normalisation",
        )


def _batch(
    federation: Federation, draw: np.random.Generator, scale: float, size: int = 1 + _OTHERS
) -> Tensor:
    """Made-up inputs of the federation's kind, `[examples, ...]`, as the model sees them."""
    shape = (size, *federation.input_shape)
    kind: np.dtype[Any] = federation.train.inputs.dtype
    if np.issubdtype(kind, np.floating):
        largest = float(np.finfo(kind).max)
        made = np.clip(scale * draw.random(shape), -largest, largest).astype(kind)
    else:
        most = 2 if scale == 0 else max(2, min(federation.classes, 100))
        made = draw.integers(0, most, size=shape).astype(kind)
    return as_tensor(federation.model_inputs(made)).clone()


def _extremes(federation: Federation, model: nn.Module) -> Iterator[Tensor]:
    """Inputs as far out as a record may be: the largest numbers, tokens up to the last one."""
    shape = (1 + _OTHERS, *federation.input_shape)
    kind: np.dtype[Any] = federation.train.inputs.dtype
    tokens = token_limit(model, federation)
    if federation.task is Task.SEQUENCE:
        tokens = federation.classes
    values: list[object] = [0, 1]
    if tokens is not None:
        values = [np.linspace(tokens - 1, 0, math.prod(shape)).reshape(shape)]
    elif kind.kind in "fiu":
        limits: Any = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        values = [limits.max, limits.min]
    for value in values:
        with np.errstate(all="ignore"):
            made = federation.model_inputs(np.broadcast_to(np.asarray(value, kind), shape).copy())
        yield as_tensor(made).clone()


def _tried(model: nn.Module, inputs: Tensor, back: bool = True) -> tuple[Tensor, Tensor]:
    """Outputs, and, if it goes `back`, the gradient of the first example's: what a layer does on
    the way back (a hook, a function of its own) shows in it alone."""
    found: tuple[Tensor | None, ...] = ()
    with torch.set_grad_enabled(back), drawing_from(_SEED):
        try:
            outputs: Tensor = model(inputs.clone())
            if back:
                first = outputs[:1].double().flatten()
                way = torch.linspace(1.0, 2.0, len(first), dtype=torch.float64)
                trained = [own for own in model.parameters() if own.requires_grad]
                found = torch.autograd.grad(first @ way, trained, allow_unused=True)
        except Exception as error:  # whatever a user's module may raise
            raise SensitivityRefused(
                f"the model fails on made-up inputs, so nothing shows that it keeps examples "
                f"apart: {_said(error)}",
                "use a model that takes any inputs of the data's shape and type",
            ) from None
    gradient = [part.detach().flatten() for part in found if part is not None]
    return outputs.detach().clone(), torch.cat(gradient) if gradient else torch.zeros(0)


def _said(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _state(model: nn.Module) -> dict[str, Tensor]:
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach().clone() for name, value in named}


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding; the same kernels on the same shapes should not even round apart."""
    if one.shape != other.shape:
        return False
    return torch.allclose(one.float(), other.float(), rtol=1e-5, atol=1e-6, equal_nan=True)
