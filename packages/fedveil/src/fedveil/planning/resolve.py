"""What follows from a method once its federation and its model are known."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from fedveil.core.errors import ConfigError
from fedveil.core.units import Arithmetic
from fedveil.data.federation import Federation, Task
from fedveil.methods.parts.method import Method, Voting
from fedveil.methods.parts.noise_placement import NoiseContext, NoisePlacement, StatisticNoise
from fedveil.planning.secure_sums import (
    check_central,
    check_masks,
    check_sums,
    on_integers,
    secure_sums,
)
from fedveil.privacy.sampling import Sampling
from fedveil.training.client.ballot import Ballot
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.models.flat import layout_of
from fedveil.training.models.tensors import as_tensor
from fedveil.training.server.distillation import Distillation


def sampling_of(method: Method, federation: Federation) -> Sampling:
    """Who takes part."""
    return method.cohort.resolve(federation.clients, method.rounds)


def pipeline_of(method: Method, federation: Federation, module: nn.Module) -> UpdatePipeline:
    """What leaves a client, before anything is said about noise."""
    pipeline = method.pipeline
    if method.voting is not None:
        inputs = _questions(method.voting, federation)
        pipeline = replace(pipeline, ballot=Ballot(module, inputs, federation.classes))
    if isinstance(method.placement, StatisticNoise):
        pipeline = replace(pipeline, statistic=method.placement.statistic(federation, module))
    if method.by_examples and pipeline.weight_cap is None:
        # Dividing by the sum of weights makes any common factor vanish.
        pipeline = replace(pipeline, weight_cap=int(federation.sizes.max()))
    return pipeline


def context_of(
    method: Method,
    federation: Federation,
    module: nn.Module,
    placement: NoisePlacement,
    seed: int | None,
    arithmetic: Arithmetic | None,
) -> NoiseContext:
    """What the noise will be fitted to; `arithmetic=None` as `plan` says."""
    usual = Arithmetic.EXACT if seed is None else Arithmetic.IDEALISED
    context = fitted(method, federation, module, placement, arithmetic or usual)
    check_central(placement, context)
    if arithmetic is None and on_integers(placement, context):
        context = replace(context, arithmetic=Arithmetic.EXACT)
    check_sums(placement, context)
    check_masks(placement, context)
    return context


def fitted(
    method: Method,
    federation: Federation,
    module: nn.Module,
    placement: NoisePlacement,
    arithmetic: Arithmetic,
    noise_multiplier: float = 1.0,
    summed: bool = True,
) -> NoiseContext:
    """A context with this noise; `summed=False` leaves secure sums out, which a simulation may."""
    pipeline, sampling = pipeline_of(method, federation, module), sampling_of(method, federation)
    if method.clip_rule is not None:
        pipeline = replace(pipeline, clip=method.clip_rule.clip(method.local, 0, {}))
    return NoiseContext(
        sampling,
        method.rounds,
        method.local,
        pipeline,
        federation,
        module,
        layout_of(module),
        arithmetic,
        noise_multiplier,
        secure_sums(method, placement, sampling, federation.name) if summed else None,
        method.cohort.clients,
    )


def distillation(voting: Voting, federation: Federation, module: nn.Module) -> Distillation:
    """The server's way to learn from votes."""
    return Distillation(
        module,
        layout_of(module),
        _questions(voting, federation),
        federation.classes,
        voting.epochs,
        voting.batch_size,
        voting.learning_rate,
    )


def _questions(voting: Voting, federation: Federation) -> Tensor:
    """The public inputs that are voted on, as the model sees them."""
    if federation.task is not Task.CLASSIFICATION:
        raise ConfigError(f"training.method: votes need classes, and this is {federation.task}")
    if federation.validation is None or len(federation.validation) == 0:
        raise ConfigError(
            "data.public_fraction: voting needs public inputs; set aside a share such as 0.2"
        )
    public = federation.validation.inputs[: voting.questions]
    if voting.questions is not None and len(public) < voting.questions:
        raise ConfigError(f"server.questions: there are only {len(public)} public inputs")
    return as_tensor(federation.model_inputs(public)).contiguous()
