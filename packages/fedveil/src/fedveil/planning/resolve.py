"""What follows from a method once its federation and its model are known."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Arithmetic, Trust
from fedveil.data.federation import Federation, Task
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import (
    NoiseContext,
    NoisePlacement,
    cohort_size,
)
from fedveil.methods.recipes.sections import Voting
from fedveil.privacy.sampling import Sampling
from fedveil.privacy.secure_sums.aggregation import SecureSums
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.training.client.ballot import Ballot
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.models.flat import layout_of
from fedveil.training.models.tensors import as_tensor
from fedveil.training.server.distillation import Distillation


def sampling_of(method: Method, federation: Federation) -> Sampling:
    """Return the sampler of cohorts."""
    return method.cohort.resolve(federation.clients, method.rounds)


def pipeline_of(method: Method, federation: Federation, module: nn.Module) -> UpdatePipeline:
    """Return the update pipeline before anything is known about noise."""
    pipeline = method.pipeline
    if method.voting is not None:
        inputs = _questions(method.voting, federation)
        pipeline = replace(pipeline, ballot=Ballot(module, inputs, federation.classes))
    if method.placement is not None:
        pipeline = replace(pipeline, statistic=method.placement.statistic(federation, module))
    if method.by_examples and pipeline.weight_cap is None:
        # Dividing by the sum of weights makes any common factor vanish.
        pipeline = replace(pipeline, weight_cap=int(federation.sizes.max()))
    return pipeline


def noise_of(
    method: Method,
    federation: Federation,
    module: nn.Module,
    arithmetic: Arithmetic,
    noise_multiplier: float = 1.0,
    secure: SecureSums | None = None,
) -> NoisePlacement:
    """Return the method's noise, fitted to the facts of a plan."""
    if method.placement is None:
        raise ConfigError(f"training.method: {method.name!r} adds no noise")
    pipeline, sampling = pipeline_of(method, federation, module), sampling_of(method, federation)
    if method.clip_rule is not None:
        pipeline = replace(pipeline, clip=method.clip_rule.clip(method.local, 0, {}))
    facts = NoiseContext(
        sampling,
        method.rounds,
        method.local,
        pipeline,
        federation,
        module,
        layout_of(module),
        arithmetic,
        noise_multiplier,
        secure,
        method.cohort.clients,
        method.clip_rule,
    )
    return method.placement.fit(facts)


def usual_noise(
    method: Method,
    federation: Federation,
    module: nn.Module,
    seed: int | None,
    arithmetic: Arithmetic | None,
) -> NoisePlacement:
    """Return the method's noise, fitted at multiplier one.

    Args:
        method: With a noise placement.
        federation: The data.
        module: The model.
        seed: None for a protected run.
        arithmetic: None for the default that `plan` documents.
    """
    usual = Arithmetic.EXACT if seed is None else Arithmetic.IDEALISED
    sums = secure_sums(method, federation)
    noise = noise_of(method, federation, module, arithmetic or usual, secure=sums)
    trust = noise.privacy_model().trust
    if arithmetic is None and sums is not None and trust is Trust.DISTRIBUTED:
        noise = noise.fit(replace(noise.facts, arithmetic=Arithmetic.EXACT))
    check_sums(noise)
    return noise


def secure_sums(method: Method, federation: Federation) -> SecureSums | None:
    """Return how sums are hidden from whoever takes them; None if they are not."""
    aggregation, placement = method.aggregation, method.placement
    if placement is None or not placement.secure_sum:
        if aggregation.asked:
            raise ConfigError(
                f"aggregation: method {method.name!r} with this trust takes no secure sums; use "
                "privacy.trust distributed, or leave the section out"
            )
        return None
    if aggregation.secure is SecureMode.NONE:
        return None
    cohort = cohort_size(sampling_of(method, federation))
    if cohort < 2 and not aggregation.asked:
        return None  # a sum of one hides nothing, and there are promises that do not need it
    return aggregation.resolve(
        federation.name, cohort, placement.colluders, placement.honest_shares
    )


def chosen_sums(
    method: Method, federation: Federation, chosen: SecureSums, same_method: bool
) -> SecureSums | None:
    """Return the secure sums of a plan that was made with `chosen` ones.

    Masked or ideal, and how many are simulated to drop out, is a choice; who counts is not.

    Args:
        method: The plan's method.
        federation: The plan's data.
        chosen: The secure sums that a plan was replaced with.
        same_method: Whether the plan's method and data are the ones that these were made for.
    """
    meant = secure_sums(method, federation)
    if meant is not None and replace(chosen, mode=meant.mode, dropout=meant.dropout) == meant:
        return chosen
    if same_method:
        raise ConfigError("secure_sums: follows from the method, but for mode and dropout")
    return meant


def check_sums(noise: NoisePlacement, promised: bool = True) -> None:
    """Refuse a promise that rests on a secure sum without one, and masks without integers.

    Args:
        noise: The fitted noise of a plan.
        promised: Whether the plan promises anything; a simulation may leave secure sums out.
    """
    facts, trust = noise.facts, noise.privacy_model().trust
    if facts.public_clients and trust is not Trust.CENTRAL:
        # A declared number of clients hides who is there from those who do not see it.
        raise ConfigError("privacy.public_clients: only for trust central; others see who is there")
    if promised and facts.secure is None and trust is Trust.DISTRIBUTED:
        raise PrivacyRefusal(
            "distributed trust rests on secure sums over two clients or more, and this plan has "
            "none",
            "use aggregation.secure masked or ideal, or privacy.trust local or central",
        )
    masked = facts.secure is not None and facts.secure.mode is SecureMode.MASKED
    if masked and noise.at(facts.pipeline.clip).integers is None:
        raise ConfigError(
            "privacy.arithmetic: masks hide integers, and 'idealised' updates are none; use "
            "exact, or aggregation.secure ideal"
        )


def distillation(voting: Voting, federation: Federation, module: nn.Module) -> Distillation:
    """Return the server's optimiser for votes: distillation on the public inputs."""
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
    """Return the public inputs that are voted on, as the model sees them."""
    if federation.task is not Task.CLASSIFICATION:
        raise ConfigError(f"training.method: votes need classes, and this is {federation.task}")
    if federation.validation is None or len(federation.validation) == 0:
        raise ConfigError(
            "data.public_fraction: voting needs public inputs; set aside a share such as 0.2"
        )
    public = federation.validation.inputs[: voting.questions]
    if voting.questions is not None and len(public) < voting.questions:
        raise ConfigError(f"voting.questions: there are only {len(public)} public inputs")
    return as_tensor(federation.model_inputs(public)).contiguous()
