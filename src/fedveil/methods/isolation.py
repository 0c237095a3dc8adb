"""Whether a model keeps examples apart: tried on made-up inputs, since any module may be trained.

A model that remembers what it saw (running statistics, a counter) carries one client's data into
another's update. One whose layers mix the examples of a batch lets one record move every example's
gradient. Both show when the same example comes in other company.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.data.federation import Federation, Task
from fedveil.errors import BadInput
from fedveil.local.records import as_tensor
from fedveil.privacy.refusals import SensitivityRefused

_OTHERS = 2  # examples beside the one that is watched
_SCALES = (1.0, 0.0, -7.0)  # of the company it is in
_SEED = 7  # of made-up inputs, and of layers that draw, such as dropout


def check_isolation(module: nn.Module, federation: Federation, per_example: bool) -> None:
    """Raise a SensitivityRefused if the model remembers, or, `per_example`, mixes examples."""
    model = copy.deepcopy(module).train()
    draw = np.random.default_rng(_SEED)
    watched, *company = (_batch(federation, draw, scale) for scale in (1.0, *_SCALES))
    before = _state(model)
    alone = _outputs(model, watched)
    _check_shape(alone, federation)
    for others in company:
        mixed = watched.clone()
        mixed[1:] = others[1:]
        beside = _outputs(model, mixed)
        if per_example and not _same(alone[:1], beside[:1]):
            raise SensitivityRefused(
                "per-example clipping with a model that mixes the examples of a batch (batch "
                "normalisation, say): one record moves every example's gradient",
                "use group or layer normalisation",
            )
    after = _state(model)
    kept = before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    if not kept or not _same(alone, _outputs(model, watched)):
        raise SensitivityRefused(
            "the model remembers what it was shown (running statistics, or its own randomness), "
            "so one client's data would enter another's update",
            "use layers without state, such as group normalisation",
        )


def _batch(federation: Federation, draw: np.random.Generator, scale: float) -> Tensor:
    """Made-up inputs of the federation's kind, `[examples, ...]`, as the model sees them."""
    shape, kind = (1 + _OTHERS, *federation.input_shape), federation.train.inputs.dtype
    if np.issubdtype(kind, np.floating):
        made = (scale * draw.random(shape)).astype(kind)
    else:
        most = 2 if scale == 0 else max(2, min(federation.classes, 100))
        made = draw.integers(0, most, size=shape).astype(kind)
    return as_tensor(federation.model_inputs(made)).clone()


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        try:
            outputs: Tensor = model(inputs).detach().clone()
        except Exception as error:  # whatever a user's module may raise
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SensitivityRefused(
                f"the model fails on made-up inputs, so nothing shows that it keeps examples "
                f"apart: {first}",
                "use a model that takes any inputs of the data's shape and type",
            ) from None
    return outputs


def _check_shape(outputs: Tensor, federation: Federation) -> None:
    """A score for every class, or one number: else training fails at some label, rounds later."""
    lead = outputs.shape[0] == 1 + _OTHERS
    if federation.task is Task.REGRESSION:
        fits = lead and outputs.numel() == 1 + _OTHERS
    else:
        fits = lead and outputs.dim() > 1 and outputs.shape[-1] == federation.classes
    if not fits:
        wanted = "one number" if federation.task is Task.REGRESSION else federation.classes
        raise BadInput(
            f"model: it gives {list(outputs.shape[1:])} for an example, and the data have "
            f"{wanted}{'' if federation.task is Task.REGRESSION else ' classes'}"
        )


def _state(model: nn.Module) -> dict[str, Tensor]:
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach().clone() for name, value in named}


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding; the same kernels on the same shapes should not even round apart."""
    if one.shape != other.shape:
        return False
    return torch.allclose(one.float(), other.float(), rtol=1e-5, atol=1e-6, equal_nan=True)
