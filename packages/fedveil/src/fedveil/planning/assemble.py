"""From a recipe to a plan: the one place where names in recipes become parts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedveil.core.arguments import number_of, one_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Arithmetic, Trust, Unit
from fedveil.data.bins import bins_for
from fedveil.data.dp_schema import MISSED, MOST_RELEASES, SHARE, Bought, Offer
from fedveil.data.federation import Federation
from fedveil.data.folder import shared_file, title
from fedveil.data.media import from_images, from_texts, is_text, media_of
from fedveil.data.partition import named
from fedveil.data.public_facts import PublicFacts
from fedveil.data.sources import SOURCES, load, same_data
from fedveil.data.table import from_table
from fedveil.methods.parts.noise_placement import Bounded
from fedveil.methods.recipes.sections import DataSection, ModelSection, Recipe
from fedveil.methods.registry import METHODS, method_of
from fedveil.planning.limits import start_origin
from fedveil.planning.plan import Budget, Plan, plan
from fedveil.planning.unread import refuse_file_keys, refuse_unread
from fedveil.privacy.accountants.exact import gaussian_noise
from fedveil.privacy.accounting import default_delta
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.training.client.batches import unit_sizes
from fedveil.training.client.local_training import BatchKind
from fedveil.training.models.features import FeatureMap, named_features, with_features
from fedveil.training.models.frozen import start_from
from fedveil.training.models.losses import ClassWeights
from fedveil.training.models.zoo import build
from fedveil.training.server.averaging import Average

__all__ = [
    "features_of",
    "federation_of",
    "method_of",
    "model_of",
    "offer_of",
    "plan_of",
    "refuse_baseline",
    "with_table_model",
]

_OF_PARTITIONS = ("clients", "alpha", "examples_per_client", "cap")
_OF_TABLES = (
    *("client_column", "person_column", "records_per_person", "label", "label_separator"),
    *("classes", "bins", "text_columns", "text_encoder", "task"),
)
_OF_FEATURES = (
    *("scales", "angles", "order", "patches", "whiten", "directions", "width", "bandwidth"),
    *("backbone", "backbone_weights", "backbone_head", "pixels", "seed"),
)
_LARGEST_BATCH = 2048  # beyond, rounding errors of a sum cost more than its records bring


def federation_of(data: DataSection, offer: Offer | None = None, rows: Any = None) -> Federation:
    """Return the federation that a recipe's data section describes.

    Args:
        data: The section.
        offer: Terms under which statistics of a table without a schema are bought.
        rows: Made-up rows in the place of the table's.
    """
    settings = ((name, getattr(data, name)) for name in _OF_PARTITIONS)
    partition_settings = {name: value for name, value in settings if value is not None}
    if data.file is None:
        refuse_file_keys(data)
        return load(
            data.source,
            data.partition,
            data_dir=data.directory,
            test_fraction=data.test_fraction,
            validation_fraction=data.public_fraction,
            holdout=data.holdout,
            seed=data.seed,
            **partition_settings,
        )
    name = data.partition or ("owner" if partition_settings else None)
    dealt: dict[str, Any] = {
        "partition": None if name is None else named(name, **partition_settings),
        "test_fraction": data.test_fraction,
        "validation_fraction": data.public_fraction or 0.0,
        "holdout": data.holdout or "within",
        "seed": data.seed,
    }
    path = Path(data.file)
    if path.is_dir() and (files := media_of(path, deep=data.file_labels is not None)):
        label_settings: dict[str, Any] = {"classes": data.classes, "labels": data.file_labels}
        if is_text(files[0]):
            return from_texts(path, text_encoder=data.text_encoder, **label_settings, **dealt)
        return from_images(path, size=data.image_size, **label_settings, **dealt)
    if data.client_column is None and data.partition is None:
        raise ConfigError(
            f"--client-column: say which column of {data.file} names the client; if each has a "
            "file, name their folder"
        )
    if data.label is None:
        raise ConfigError(f"--label: say which column of {title(path)} is to be predicted")
    if data.statistics == "bought" and offer is None and not (data.columns or data.schema):
        raise ConfigError(
            "data.statistics: they are bought by fedveil run --data without a recipe; here, give "
            "data.schema or leave the key out"
        )
    if offer is not None and data.epsilon_column and not (data.columns or data.schema):
        raise ConfigError(
            "data.schema: give one beside privacy.epsilon_column. Statistics that are bought cost "
            "everybody in full, also those who bring less than they cost."
        )
    federation = from_table(
        data.file if rows is None else rows,
        **{name: getattr(data, name) for name in _OF_TABLES},
        epsilon_column=data.epsilon_column if rows is None else None,
        schema={"columns": data.columns} if data.columns else data.schema,
        offer=offer,
        bought=Bought.from_dict(data.bought) if data.bought else None,
        test=data.test_file,
        **dealt,
    )
    if rows is not None and data.epsilon_column is not None:  # made-up people bring none
        persons = federation.train.persons
        count = federation.clients if persons is None else int(persons.max()) + 1
        federation = replace(federation, own_epsilons=np.full(count, np.inf))
    return federation


_STEPS, _MOMENTUM = 40, 0.8  # of gradients on bins; twice as many steps change little
_FEW_CLIENTS = 2000  # fewer learn more from local steps than from noisy moments
# Whoever sets anything else has a model or a training in mind.
_OF_EVERY_METHOD = ("data.", "evaluation.", "engine.", "aggregation.")
_OF_MOMENTS = frozenset(
    {"seed", "model.name"}
    | {f"privacy.{name}" for name in ("epsilon", "delta", "unit", "trust", "public_clients")}
)


def with_table_model(
    recipe: Recipe, given: Collection[str], clients: int, facts: PublicFacts
) -> Recipe:
    """Return the recipe with the model for a table that nobody has chosen one for.

    Args:
        recipe: With a unit to protect.
        given: The recipe's keys that the user has set, and keeps.
        clients: How many there are, for all to know.
        facts: What is public about the table.

    Returns:
        Numbers in bins, and few noisy gradients of all rows, or of clients one release of moments
        (`methods.moments`), where the user has set nothing that asks for another method; else the
        recipe itself. Gradients see the loss's true curvature, which in moments is noise where
        units are few. Texts have too many inputs.
    """
    settled = all(key.startswith(_OF_EVERY_METHOD) or key in _OF_MOMENTS for key in given)
    linear = replace(recipe.model, name="auto") == ModelSection()
    if recipe.data.text_columns or not settled or not linear:
        return recipe
    if recipe.model.name not in ("auto", "linear", "logistic"):
        return recipe
    privacy = recipe.privacy
    Budget(privacy.epsilon or 4.0, privacy.delta)  # refuses what makes no sense before a purchase
    unit = one_of(Unit)("privacy.unit", privacy.unit)
    units = clients if unit is Unit.CLIENT else facts.units(unit)
    if unit is Unit.CLIENT and units < _FEW_CLIENTS:
        return recipe
    if recipe.data.bins is None:
        noise = gaussian_noise(privacy.epsilon or 4.0, privacy.delta or default_delta(units))
        columns = len(facts.columns) - 2  # without label and client
        recipe = replace(recipe, data=replace(recipe.data, bins=bins_for(units, columns, noise)))
    if unit is not Unit.CLIENT:
        training = replace(recipe.training, method="dp-sgd", rounds=_STEPS, batch_rate=1.0)
        server = replace(recipe.server, momentum=_MOMENTUM, average=Average.TAIL.value)
        return replace(recipe, training=training, server=replace(server, average_setting=0.5))
    if privacy.trust is None:
        hidden = recipe.aggregation.secure not in (None, SecureMode.NONE)
        trust = Trust.DISTRIBUTED if hidden else Trust.CENTRAL
        recipe = replace(recipe, privacy=replace(privacy, trust=trust.value))
    return replace(recipe, training=replace(recipe.training, method="moments", rounds=1))


def offer_of(recipe: Recipe, clients: int, count: Callable[[Unit], int]) -> Offer | None:
    """Return the terms for buying a table's statistics with a part of the recipe's budget.

    Args:
        recipe: with a budget, and with a method or a unit to protect.
        clients: how many there are, for all to know.
        count: counts the rows or persons, where the unit is such that their number is public.

    Returns:
        None where there is no epsilon to divide, or no way to buy: how many units there are decides
        about the noise, so it must not be what is hidden.
    """
    privacy, entry = recipe.privacy, METHODS.find(recipe.training.method, "training.method")
    unit = one_of(Unit)("privacy.unit", privacy.unit or entry.unit)
    hidden = privacy.adjacency == Adjacency.ADD_REMOVE and unit is not Unit.CLIENT
    if not entry.private or privacy.epsilon is None or hidden:
        return None
    Budget(privacy.epsilon, privacy.delta)
    if recipe.data.classes:
        _check_weights(recipe.training.class_weights, recipe.data.classes)
    if recipe.data.bins is not None and recipe.data.bins < 2:
        raise ConfigError(f"data.bins: must be at least 2, got {recipe.data.bins}. Leave it out.")
    trust = one_of(Trust)("privacy.trust", privacy.trust or entry.trust)
    delta = privacy.delta or default_delta(clients if unit is Unit.CLIENT else count(unit))
    twice = 2 if trust is Trust.DISTRIBUTED else 1  # there a replaced record counts twice
    noise = twice * math.sqrt(MOST_RELEASES) / SHARE * gaussian_noise(privacy.epsilon, delta)
    with suppress(PrivacyRefusal):
        return Offer(
            unit, trust, noise, MISSED * delta, clients, recipe.seed, bins=recipe.data.bins
        )
    return None


def refuse_baseline(recipe: Recipe, plan: Plan) -> None:
    """Refuse a training without noise beside a protected run."""
    if recipe.evaluation.baseline and plan.protected:
        raise PrivacyRefusal(
            "evaluation.baseline trains without noise, and its accuracy would leave unprotected",
            "give a --seed to simulate, or leave the baseline out",
        )


def model_of(chosen: ModelSection, federation: Federation) -> nn.Module:
    """Return the model of a recipe with its initial weights, before any file of weights is read."""
    return build(
        chosen.name,
        federation,
        hidden=chosen.hidden,
        input_norm=chosen.input_norm,
        seed=chosen.seed,
        frozen=chosen.frozen,
        adapter_rank=chosen.adapter_rank,
    )


def features_of(chosen: ModelSection) -> FeatureMap | None:
    """Return the fixed features that a recipe's model sees; None if it sees inputs as they are."""
    settings: dict[str, Any] = {name: getattr(chosen, name) for name in _OF_FEATURES}
    # False is what maps without a mirror do.
    return named_features(chosen.features, mirror=chosen.mirror or None, **settings)


def plan_of(recipe: Recipe, federation: Federation) -> Plan:
    """Resolve a recipe on its federation: the noise is calibrated and the guarantee known.

    Args:
        recipe: A recipe with its defaults filled in.
        federation: The data that it describes (`federation_of`).

    Raises:
        ConfigError: The recipe cannot be run on these data; PrivacyRefusal if nothing proves its
            epsilon.
    """
    chosen = recipe.model
    features = features_of(chosen)
    if features is not None:
        federation = with_features(federation, features, keep=_decoded_in_cache(recipe.data))
    if recipe.privacy.epsilon_column is not None and federation.own_epsilons is None:
        raise ConfigError(
            "privacy.epsilon_column: these data bring no epsilons. It names a column of a table "
            "(data.file)."
        )
    model = model_of(chosen, federation)
    complete = with_batch(recipe, federation)
    refuse_unread(complete)
    method = method_of(complete)
    if recipe.training.class_weights:
        loss = _weighted(recipe.training.class_weights, federation)
        method = replace(method, local=replace(method.local, loss=loss))
    budget = None
    if method.placement is not None:
        privacy = recipe.privacy
        budget = Budget(privacy.epsilon, privacy.delta, privacy.noise_multiplier)
    arithmetic = recipe.privacy.arithmetic
    declared, unprotected = _said(recipe, bought=federation.bought is not None)
    if chosen.start is not None:
        start = start_from(model, chosen.start)
        # A file that fedveil has not written is declared to be of public data by naming it.
        origin = start.data and start_origin(start.data, start.public, federation.name)
        if origin:
            unprotected.append(f"{start.sentence.rstrip('.')}{origin}.")
        else:
            declared.append(f"{start.sentence} That those data are public is declared.")
    return plan(
        method,
        federation,
        model,
        budget=budget,
        seed=recipe.seed,
        arithmetic=None
        if arithmetic is None
        else one_of(Arithmetic)("privacy.arithmetic", arithmetic),
        declared=declared,
        unprotected=unprotected,
        trusted_parts=recipe.privacy.trusted_parts,
        budgets=recipe.privacy.budgets,
    )


def _weighted(weights: Mapping[str, Any], federation: Federation) -> ClassWeights:
    """Return a loss with weights of classes by name; a class that is not named has weight one."""
    names = federation.class_names or tuple(map(str, range(federation.classes)))
    _check_weights(weights, names)
    return ClassWeights(tuple(float(weights.get(name, 1.0)) for name in names))


def _check_weights(weights: Mapping[str, Any], names: Sequence[str]) -> None:
    for name, weight in weights.items():
        if name not in names:
            hint = f"There are {', '.join(names[:8])}." if names else "Numbers have no classes."
            raise ConfigError(f"training.class_weights: there is no class {name!r}. {hint}")
        number_of(f"training.class_weights.{name}", weight)


def with_batch(recipe: Recipe, federation: Federation) -> Recipe:
    """Return the recipe with batch size and rate decided where records or persons are protected.

    Sums of clipped gradients are divided by a fixed number, and sizes of clients are public there.
    Of the rate and the expected size of secret batches, the one that is not given follows from how
    many records there are. A batch that was asked for and is smaller than the data is secret by
    default where the method says so, unless records are replaced.
    """
    entry, training = METHODS.find(recipe.training.method, "training.method"), recipe.training
    unit = recipe.privacy.unit or entry.unit
    if not entry.private or unit not in (Unit.RECORD, Unit.PERSON):
        if training.batches == BatchKind.POISSON or training.batch_rate is not None:
            raise ConfigError(
                "training.batches: secret batches protect records, and this run protects clients. "
                "Leave it out, or set privacy.unit to record."
            )
        return recipe
    without = method_of(replace(recipe, training=replace(training, batch_rate=None)))
    if without.placement is None or without.placement.bounded is not Bounded.GRADIENT:
        return recipe
    size, rate = training.batch_size, training.batch_rate
    sizes = unit_sizes(federation, without.local)
    clients, records = federation.clients, int(sizes.sum())
    secret = rate is not None
    if training.batches is not None:
        secret = one_of(BatchKind)("training.batches", training.batches) is BatchKind.POISSON
    elif rate is None and entry.secret_batches and size and size * clients < records:
        secret = recipe.privacy.adjacency in (None, Adjacency.ZERO_OUT)
    if secret:
        if size is None and rate is None:
            raise ConfigError(
                "training.batches: secret batches need a rate or an expected size. Set "
                "training.batch_rate or training.batch_size."
            )
        if rate is None:
            rate = min(1.0, (size or 0) * clients / records)
        if size is None:
            size = max(1, round(rate * records / clients))
    elif rate is not None:
        raise ConfigError(
            "training.batch_rate: goes with training.batches = 'poisson', and they are shuffled. "
            "Leave it out."
        )
    elif size is None:
        size = min(_LARGEST_BATCH, int(sizes.max()))
    return replace(recipe, training=replace(training, batch_size=size, batch_rate=rate))


def _decoded_in_cache(data: DataSection) -> bool:
    return data.file is None and data.source in SOURCES and bool(SOURCES[data.source].copies)


def _said(recipe: Recipe, *, bought: bool) -> tuple[list[str], list[str]]:
    """Return sentences on what the recipe declares to be public, and on what is not protected."""
    declared, unprotected = [], []
    but = ", but for those that were bought" if bought else ""
    if recipe.data.file is not None and recipe.data.schema is not None:
        name = Path(recipe.data.schema).name
        declared.append(f"The columns, ranges and categories of the schema {name} are public{but}.")
    if recipe.data.columns and not recipe.data.bought:
        declared.append("The columns, ranges and categories in data.columns are public.")
    if recipe.data.classes:
        declared.append(f"The classes are public: {', '.join(recipe.data.classes)}.")
    for name in recipe.privacy.tuned_on:
        chosen_by = f"Settings were chosen by looking at {name}"
        if is_protected(recipe.data, name):
            gone = recipe.data.file is not None and not Path(name).exists()
            which = "which is gone, and may be the protected data" if gone else "the protected data"
            unprotected.append(f"{chosen_by}, {which}.")
        elif recipe.data.file is None:
            declared.append(f"{chosen_by}, declared to be public.")
        else:
            declared.append(
                f"{chosen_by}, declared to be public and no copy of the protected data."
            )
    return declared, unprotected


def is_protected(data: DataSection, name: str) -> bool:
    """Return whether settings may have been chosen on the data that a recipe trains on.

    A file that no longer exists may be the protected one under an earlier name.

    Args:
        data: The recipe's data section.
        name: The data that settings were chosen on.
    """
    if data.file is None:
        return same_data(name, data.source)
    path = Path(name)
    if name == data.file:
        return True
    if path.exists():
        return shared_file(path, Path(data.file)) is not None
    return name not in SOURCES and (os.sep in name or path.suffix != "")
