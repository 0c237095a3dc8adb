"""When local steps bring no two runs further apart: the certificate for linear models."""

from __future__ import annotations

import math

from fedveil.data.federation import Task
from fedveil.methods.protection import Terms
from fedveil.models.zoo import Linear
from fedveil.privacy.gradient_perturbation import Loss, NonExpansive
from fedveil.privacy.refusals import GradientRefused


def non_expansive(terms: Terms, steps: int) -> NonExpansive | None:
    """The certificate for `steps` local steps of these terms, or None if there is none.

    It needs a linear model whose inputs are shortened to a public norm (`model.input_norm`), plain
    SGD and a learning rate below the curvature's limit. Two classes scored by a softmax are a
    logistic model of the difference of their weights: one example's gradient is a multiple of
    (-x, x), of length sqrt(2) |x|, and clipping it keeps the loss convex. With more classes, a
    clipped gradient may expand: there the clip must be too wide to act.
    """
    model, rule, task = terms.module, terms.local, terms.federation.task
    if not isinstance(model, Linear) or model.input_norm is None:
        return None
    if rule.penalty or rule.projection_radius is not None or rule.gradient_clip is None:
        return None
    reach = math.hypot(model.input_norm, 1.0)  # the bias is a coordinate of one
    clipped = True
    if task is Task.REGRESSION:
        loss = Loss.SQUARED
    elif terms.federation.classes == 2:
        loss, reach = Loss.LOGISTIC, math.sqrt(2) * reach
    else:
        loss, clipped = Loss.SOFTMAX, False
    rates = tuple(dict.fromkeys(rule.learning_rate.of_round(0, steps)))
    try:
        certificate = NonExpansive(loss, reach, rates, rule.weight_decay, clipped, rule.momentum)
    except GradientRefused:
        return None
    if not clipped and rule.gradient_clip.norm < certificate.gradient_bound():
        return None
    return certificate
