"""From a recipe to a plan: the one place where names in recipes become parts."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from fedveil.data.federation import Federation
from fedveil.data.partition import named
from fedveil.data.sources import load
from fedveil.data.table import from_table
from fedveil.errors import BadInput
from fedveil.local.rule import LearningRate, LocalRule, Schedule
from fedveil.methods.dp_fedavg import dp_fedavg
from fedveil.methods.fedavg import fedavg
from fedveil.methods.method import CohortRule, Method, Scheme
from fedveil.models.zoo import build
from fedveil.plan.plan import Budget, Plan, plan
from fedveil.privacy.clipping import Clip
from fedveil.privacy.units import Arithmetic
from fedveil.recipe import DataSection, Recipe
from fedveil.server.optimizers import Adam, Optimizer, Sgd

Choice = TypeVar("Choice", bound=StrEnum)


def federation_of(data: DataSection) -> Federation:
    """The federation that a recipe's data section describes."""
    if data.file is None:
        return load(
            data.source,
            data.partition,
            data_dir=data.directory,
            test_fraction=data.test_fraction,
            seed=data.seed,
            clients=data.clients,
            alpha=data.alpha,
            examples_per_client=data.examples_per_client,
            cap=data.cap,
        )
    if data.client_column is None and data.partition is None:
        raise BadInput(f"--client-column: say which column of {data.file} names the client")
    if data.label is None:
        raise BadInput(f"--label: say which column of {data.file} is to be predicted")
    settings = {
        "clients": data.clients,
        "alpha": data.alpha,
        "examples_per_client": data.examples_per_client,
        "cap": data.cap,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    name = data.partition or ("owner" if given else None)
    return from_table(
        data.file,
        client_column=data.client_column,
        label=data.label,
        schema=data.schema,
        task=data.task,
        partition=None if name is None else named(name, **given),
        test_fraction=data.test_fraction,
        seed=data.seed,
    )


def method_of(recipe: Recipe) -> Method:
    """The method that a recipe describes."""
    name = recipe.training.method
    if name not in METHODS:
        raise BadInput(f"training.method: unknown method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name](recipe)


def plan_of(recipe: Recipe, federation: Federation) -> Plan:
    """The plan of a recipe on its federation: noise calibrated, guarantee known."""
    model = build(recipe.model.name, federation, hidden=recipe.model.hidden, seed=recipe.model.seed)
    method = method_of(recipe)
    budget = None
    if method.protection is not None:
        privacy = recipe.privacy
        budget = Budget(privacy.epsilon, privacy.delta, privacy.noise_multiplier)
    arithmetic = recipe.privacy.arithmetic
    return plan(
        method,
        federation,
        model,
        budget=budget,
        seed=recipe.seed,
        arithmetic=None
        if arithmetic is None
        else _named(Arithmetic, "privacy.arithmetic", arithmetic),
    )


def _fedavg(recipe: Recipe) -> Method:
    return fedavg(
        rounds=recipe.training.rounds,
        cohort=_cohort(recipe),
        local=_local(recipe),
        weight_cap=recipe.training.weight_cap,
        optimizer=_optimizer(recipe),
    )


def _dp_fedavg(recipe: Recipe) -> Method:
    return dp_fedavg(
        rounds=recipe.training.rounds,
        cohort=_cohort(recipe),
        local=_local(recipe),
        clip=Clip(recipe.privacy.clip_norm),
        weight_cap=recipe.training.weight_cap,
        optimizer=_optimizer(recipe),
    )


METHODS: dict[str, Callable[[Recipe], Method]] = {"fedavg": _fedavg, "dp-fedavg": _dp_fedavg}


def _cohort(recipe: Recipe) -> CohortRule:
    training = recipe.training
    scheme = _named(Scheme, "training.sampling", training.sampling)
    return CohortRule(scheme, training.cohort, training.rate, training.cohort_cap)


def _local(recipe: Recipe) -> LocalRule:
    training = recipe.training
    schedule = _named(Schedule, "training.schedule", training.schedule)
    return LocalRule(
        learning_rate=LearningRate(training.learning_rate, schedule, training.decay),
        steps=training.local_steps,
        epochs=training.local_epochs,
        batch_size=training.batch_size,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )


def _optimizer(recipe: Recipe) -> Optimizer:
    server = recipe.server
    if server.optimizer == "sgd":
        return Sgd(server.learning_rate, server.momentum)
    if server.optimizer in ("adam", "yogi"):
        return Adam(server.learning_rate, server.momentum, yogi=server.optimizer == "yogi")
    raise BadInput(
        f"server.optimizer: unknown optimizer {server.optimizer!r}; there are sgd, adam, yogi"
    )


def _named(kind: type[Choice], key: str, value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        raise BadInput(f"{key}: unknown {value!r}; there are {', '.join(kind)}") from None
