"""When local steps bring no two runs further apart: the certificate for linear models."""

from __future__ import annotations

import math

import torch
from torch import nn

from fedveil.data.federation import Task
from fedveil.methods.parts.local_steps import local_steps, same_rates
from fedveil.methods.parts.noise_placement import NoiseContext
from fedveil.privacy.gradient_perturbation import Loss, NonExpansive
from fedveil.privacy.refusals import GradientRefused
from fedveil.training.models.structure import as_written
from fedveil.training.models.zoo import BoundedInputs, Linear


def non_expansive(context: NoiseContext) -> NonExpansive | None:
    """The certificate for the local steps of these terms, or None if there is none.

    It needs a linear model whose inputs are shortened to a public norm (`model.input_norm`), plain
    SGD at rates that all clients share, below the curvature's limit. Two classes scored by a
    softmax are a logistic model of the difference of their weights: one example's gradient is a
    multiple of (-x, x), of length sqrt(2) |x|, and clipping it keeps the loss convex. With more
    classes, a clipped gradient may expand: there the clip must be too wide to act.
    """
    rule, task, classes = context.local, context.federation.task, context.federation.classes
    if task not in (Task.REGRESSION, Task.CLASSIFICATION) or rule.loss is not None:
        return None
    longest = input_norm(context.module, 1 if task is Task.REGRESSION else classes)
    if longest is None or not same_rates(context):
        return None
    clip = rule.gradient_clip
    if rule.penalty or rule.projection_radius is not None or clip is None or not clip.per_example:
        return None
    reach = math.hypot(longest, 1.0)  # the bias is a coordinate of one
    clipped = True
    if task is Task.REGRESSION:
        loss = Loss.SQUARED
    elif classes == 2:
        loss, reach = Loss.LOGISTIC, math.sqrt(2) * reach
    else:
        loss, clipped = Loss.SOFTMAX, False
    rates = tuple(dict.fromkeys(rule.learning_rate.of_round(0, local_steps(context).most)))
    try:
        certificate = NonExpansive(loss, reach, rates, rule.weight_decay, clipped, rule.momentum)
    except GradientRefused:
        return None
    if not clipped and clip.norm < certificate.gradient_bound():
        return None
    return certificate


def input_norm(module: nn.Module, outputs: int) -> float | None:
    """The norm that a model shortens its inputs to before one affine map to this many `outputs`.

    None unless it is exactly that: another class, a layer more, a hook, a parameter or a buffer of
    its own would be another function, of which nothing is proved.
    """
    if type(module) is not Linear or len(module) != 3:
        return None
    parts = flat, bound, affine = tuple(module)
    if type(flat) is not nn.Flatten or type(bound) is not BoundedInputs:
        return None
    if type(affine) is not nn.Linear:
        return None
    like = Linear(1, 1, 1.0)  # has what such a model has, and nothing else
    for part, usual in zip((module, *parts), (like, *like), strict=True):
        if not as_written(part) or vars(part).keys() != vars(usual).keys():
            return None
        if part._modules.keys() != usual._modules.keys() or part._buffers:
            return None
        if part._parameters.keys() != usual._parameters.keys():
            return None
    if (flat.start_dim, flat.end_dim) != (1, -1):
        return None
    shapes = {"weight": (outputs, affine.in_features), "bias": (outputs,)}
    for name, shape in shapes.items():
        own = getattr(affine, name)
        if type(own) is not nn.Parameter or tuple(own.shape) != shape or not own.requires_grad:
            return None
        if own.dtype is not torch.float32:
            return None
    return bound.norm if 0 < bound.norm < math.inf else None
