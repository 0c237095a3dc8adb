"""Whether a model and the data fit each other: found out while planning, not rounds later."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation, Task
from fedveil.data.unusable import with_tokens_below
from fedveil.training.models.flat import layout_of
from fedveil.training.models.structure import drawing_from

_TWO = 2  # made-up examples, so that a missing batch axis shows


def check_model(module: nn.Module, federation: Federation, *, protected: bool = False) -> None:
    """Raise a ConfigError, in one line, if the model cannot be trained on these data.

    It is shown zeros of the data's shape and type. Of the data themselves only shapes are looked
    at: a refusal that depended on values would tell of them.
    """
    layout_of(module)  # trainable parameters, and no running statistics
    for name, parameter in module.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ConfigError(f"model: parameter {name} starts with NaN or infinity")
    _check_targets(federation)
    if not protected:
        _check_tokens(module, federation)
    _check_outputs(_tried(module, federation), federation)


def token_limit(module: nn.Module, federation: Federation) -> int | None:
    """Token ids must be below this: the shortest Embedding of a model that reads whole numbers."""
    whole = np.issubdtype(federation.train.inputs.dtype, np.integer) and federation.scaling is None
    if not whole:
        return None
    rows = (one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding))
    return min(rows, default=None)


def with_readable(module: nn.Module, federation: Federation, examples: Examples) -> Examples:
    """Mark examples with tokens beyond the model's Embedding as unusable."""
    limit = token_limit(module, federation)
    return examples if limit is None else with_tokens_below(examples, limit)


def _check_targets(federation: Federation) -> None:
    inputs, targets = federation.train.inputs, federation.train.targets
    if federation.task is Task.SEQUENCE and targets.shape != inputs.shape[:2]:
        raise ConfigError(
            f"targets: a sequence needs a label at each of its {inputs.shape[1]} positions, "
            f"shape {list(inputs.shape[:2])}, got {list(targets.shape)}; for one label a text, "
            "use task 'classification'"
        )
    if federation.task is Task.CLASSIFICATION and targets.ndim != 1:
        raise ConfigError(
            f"targets: need one label for each example, got {list(targets.shape)}; of several say "
            "task='multi-label'"
        )


def _check_tokens(module: nn.Module, federation: Federation) -> None:
    """Refuse an Embedding that is shorter than the vocabulary. Where there is none (texts to
    classify), an example with a token beyond the Embedding is unusable."""
    limit = token_limit(module, federation)
    if limit is not None and federation.task is Task.SEQUENCE and limit < federation.classes:
        raise ConfigError(
            f"model: its Embedding has rows 0 to {limit - 1}, and the vocabulary has "
            f"{federation.classes} tokens"
        )


def _tried(module: nn.Module, federation: Federation) -> Tensor:
    """Return the model's outputs for inputs of zeros."""
    inputs = np.zeros((_TWO, *federation.input_shape), federation.train.inputs.dtype)
    seen = torch.from_numpy(np.ascontiguousarray(federation.model_inputs(inputs)))
    own = copy.deepcopy(module).train()
    try:
        with torch.no_grad(), drawing_from(0):
            outputs = own(seen)
    except Exception as error:  # whatever a user's module may raise
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        embeds = any(isinstance(child, nn.Embedding) for child in own.modules())
        if embeds and seen.is_floating_point() and "Long" in said:
            raise ConfigError(
                "model: its Embedding reads whole numbers, and the inputs come as float32; "
                "call inputs.long() in forward if they are token ids"
            ) from None
        raise ConfigError(
            f"model: it fails on inputs {list(seen.shape)} (examples first) of "
            f"{str(seen.dtype).removeprefix('torch.')}: {said}"
        ) from None
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"model: it must return a tensor, not {type(outputs).__name__}")
    return outputs


def _check_outputs(outputs: Tensor, federation: Federation) -> None:
    """One number, or a score for each class: for two classes one logit will do."""
    task, classes, shape = federation.task, federation.classes, tuple(outputs.shape)
    if task is Task.REGRESSION:
        if shape not in ((_TWO,), (_TWO, 1)):
            raise ConfigError(f"model: regression needs one output, it gives {list(shape[1:])}")
        return
    lead = (_TWO, federation.input_shape[0]) if task is Task.SEQUENCE else (_TWO,)
    one_logit = classes <= 2 and task is not Task.MULTI_LABEL
    fits = [(*lead, classes)] + ([lead, (*lead, 1)] if one_logit else [])
    if shape in fits:
        return
    if shape[:-1] != lead:
        raise ConfigError(
            f"model: it gives {list(shape)} for {_TWO} examples; needed: {list(fits[0])}"
        )
    what, hint = "labels" if task is Task.MULTI_LABEL else "classes", ""
    if shape[-1] == classes - 1 and not federation.class_names:
        hint = "; class numbers count from 0"
    raise ConfigError(
        f"model: it gives {shape[-1]} scores, and the data have {classes} {what}{hint}"
    )
