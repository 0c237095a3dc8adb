"""When local steps bring no two runs further apart: the certificate for linear models."""

from __future__ import annotations

import math

import torch
from torch import nn

from fedveil.data.federation import Task
from fedveil.methods.parts.isolation import known_apart
from fedveil.methods.parts.local_steps import local_steps, same_rates
from fedveil.methods.parts.noise_placement import NoiseContext
from fedveil.privacy.gradient_perturbation import Loss, NonExpansive
from fedveil.privacy.refusals import GradientRefused
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
    loss = Loss.SQUARED if task is Task.REGRESSION else Loss.SOFTMAX
    if task is Task.CLASSIFICATION and classes == 2:
        loss, reach = Loss.LOGISTIC, math.sqrt(2) * reach
    clipped = loss is not Loss.SOFTMAX
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
    if type(module) is not Linear or len(module) != 3 or not known_apart(module):
        return None
    flat, bound, affine = tuple(module)
    kinds = nn.Flatten, BoundedInputs, nn.Linear
    if tuple(map(type, (flat, bound, affine))) != kinds or len(list(module.modules())) != 4:
        return None
    weights = {name: (tuple(own.shape), own.dtype) for name, own in module.named_parameters()}
    shapes = {"2.weight": (outputs, affine.in_features), "2.bias": (outputs,)}
    if weights != {name: (shape, torch.float32) for name, shape in shapes.items()}:
        return None
    if flat.end_dim != -1 or not all(own.requires_grad for own in module.parameters()):
        return None
    norm = float(bound.norm)  # type: ignore[arg-type]
    return norm if 0 < norm < math.inf else None
