"""What one run adds to a guarantee's list: what was declared public, what is not covered.

And what spoils it: private data that entered without noise, or parts that nobody has proved.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from fedveil.core.origin import address, is_own, is_own_object, is_unchanged
from fedveil.core.units import Trust, Unit
from fedveil.data.declared import used_again
from fedveil.data.federation import (
    ARTIFICIAL_NOTE,
    HELD_OUT_NOTE,
    PICTURES_NOTE,
    Federation,
    Task,
)
from fedveil.data.schema import Kind
from fedveil.data.sources import same_data
from fedveil.methods.parts.method import Method, Scheme
from fedveil.methods.parts.noise_placement import NoiseContext
from fedveil.privacy.rounding import at_most
from fedveil.privacy.sampling import public_schedule
from fedveil.privacy.secure_sums.aggregation import SecureSums
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.training.models.frozen import trained_on
from fedveil.training.models.losses import ClassWeights
from fedveil.training.models.structure import as_written
from fedveil.training.server.optimizers import Sgd

_UNPROVED = "{} is none of fedveil's own parts: nothing is proved of it."
_PERSONS_OF_CLIENTS = (
    "Rows were held out or capped by person, and a person may be at several clients: one client's "
    "rows then decide which rows of others count, and this run protects clients. Set privacy.unit "
    "to person (--unit person), or leave the persons out."
)
_LAYERS_OF_TORCH = Path(inspect.getfile(nn.Linear)).resolve().parent
_PLAIN = {bool, int, float, str, *np.sctypeDict.values()}


def unprotected(context: NoiseContext, unit: Unit) -> tuple[str, ...]:
    """Return a sentence for everything that was taken from private data without noise."""
    sentences = list(taken_from_records(context.federation))
    if unit is Unit.CLIENT and context.federation.train.persons is not None:
        sentences.append(_PERSONS_OF_CLIENTS)
    if context.pipeline.ballot is not None and HELD_OUT_NOTE in context.federation.notes:
        sentences.append("The inputs to vote on must be public, and may be the clients' own data.")
    for data, public in trained_on(context.module).items():
        if origin := start_origin(data, public, context.federation.name):
            sentences.append(f"Weights start from a model trained on {data}{origin}.")
    return tuple(sentences)


def foreign_parts(
    method: Method, trusted: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a sentence for every part of a method that is not fedveil's own.

    Args:
        method: The method.
        trusted: The classes that the user vouches for, each as "package.module:Class".

    Returns:
        Sentences about parts that are trusted, and sentences about those that are not.
    """
    # The server's optimiser and smoothing see released values alone: they may be anybody's. So may
    # a loss: it was tried out, and is declared to be each example's own.
    local = replace(method.local, loss=None)
    private = replace(method, optimizer=Sgd(), smoothing=None, local=local)
    vouched, unknown = [], []
    parts = list(_foreign_parts(private))
    if not isinstance(method.cohort.scheme, Scheme):
        parts.append(public_schedule(method.cohort.scheme)(1, 1))
    for part in parts:
        name = address(type(part))
        if name in trusted and is_unchanged(part):
            vouched.append(
                f"The guarantee rests on {name}, which is none of fedveil's own parts: that it "
                "does what its proof says is declared in privacy.trusted_parts."
            )
            continue
        remedy = f'If you vouch for it, set privacy.trusted_parts = ["{name}"].'
        if name in trusted:
            remedy = "Its methods were replaced; leave them as its class has them."
        elif not name:
            remedy = "Define its class at the top level of a module to vouch for it."
        unknown.append(f"{_UNPROVED.format(type(part).__name__)} {remedy}")
    return tuple(dict.fromkeys(vouched)), tuple(dict.fromkeys(unknown))


def taken_from_records(federation: Federation) -> tuple[str, ...]:
    """Return a sentence for each value of a federation that depends on more than one unit."""
    parts = federation.test, federation.validation
    again = used_again(federation.train.inputs, *(part.inputs for part in parts if part))
    foreign = (_UNPROVED.format(name) for name in _foreign_data(federation))
    return (*dict.fromkeys((*federation.unprotected, *again)), *foreign)


def unproved(name: str) -> str:
    """Return the sentence about a part of a run that is none of fedveil's own."""
    return _UNPROVED.format(name)


def declared(context: NoiseContext, unit: Unit, trust: Trust) -> tuple[str, ...]:
    """Return sentences on what has to be public because nothing hides it.

    Args:
        context: The facts of the plan.
        unit: Whose data are protected.
        trust: Who may see data before noise is added.
    """
    federation = context.federation
    sentences = [
        f"The model's shape is public: {_shape(federation)}; so is how data are scaled.",
        "The initial weights were made without the protected data.",
    ]
    sentences += [
        f"Weights start from a model of {data}. That those data are public is declared."
        for data, public in trained_on(context.module).items()
        if start_origin(data, public, federation.name) is None
    ]
    if federation.public:
        sentences.append(
            f"That the rows of {federation.name} are public is declared; what was taken from them "
            "without noise (classes, scales, who takes part) counts as known."
        )
    elif HELD_OUT_NOTE not in federation.notes and (len(federation.test) or federation.validation):
        sentences.append(
            "Test and validation examples are public, and nobody's training examples: that is "
            "declared by giving them."
        )
    if PICTURES_NOTE in federation.notes:
        sentences.append(PICTURES_NOTE)
    if federation.encoder is not None:
        sentences.append(
            "The names of the table's columns are public, and the types they are stored with; so "
            "is that the file can be read, for a damaged one stops the run."
        )
        sentences += [
            f"Column {name!r} becomes numbers, each row's text alone, by the encoder "
            f"{column.encoder} (SHA-256 {str(column.digest)[:16]}...), whose training data are "
            "declared to be public."
            for name, column in federation.encoder.columns.items()
            if column.kind is Kind.TEXT
        ]
    if federation.encoder is not None and federation.owners is not None and unit is Unit.RECORD:
        sentences.append("Which client a row names is public. A row that names none is left out.")
    if federation.train.persons is not None and unit is Unit.RECORD:
        sentences.append("Which person a row names is public. A row that names none is left out.")
    if unit is Unit.PERSON:
        sentences.append(
            "At which clients a person has rows is public; how many there are, and what they hold, "
            "is not. A row that names no person is left out."
        )
    if unit is Unit.PERSON and federation.elsewhere:
        clip = context.local.gradient_clip
        most = 1 if clip is None else clip.sites_per_person
        sentences.append(
            f"Nobody has rows at more sites than {most}: that is declared, and nothing enforces "
            "it, for no site knows whom the others have."
        )
    if context.public_clients is not None:
        sentences.append(
            f"There are at most {context.public_clients} clients; that there are more would show, "
            "for then nothing runs."
        )
    if federation.featurizer is not None:
        sentences.append(str(federation.featurizer))
    if context.pipeline.ballot is not None:
        sentences.append(
            f"The {len(context.pipeline.ballot.inputs)} inputs that are voted on are public."
        )
    if context.secure is not None and trust is Trust.DISTRIBUTED:
        sentences += _graph(context.secure)
    sentences += _of_loss(context)
    custom_layers = sorted(
        {type(layer).__name__ for layer in context.module.modules() if _foreign(layer)}
    )
    if custom_layers:
        sentences.append(
            f"Layers that are not fedveil's ({', '.join(custom_layers)}) treat examples one by one "
            "and remember nothing of them."
        )
    return tuple(sentences)


def start_origin(data: str, public: bool, protected: str) -> str | None:
    """Return why weights of a model of these data are not known to be public; None if they are.

    Data are known by the names that somebody gave them, and a name does not tell whose rows they
    are. So only what was declared to be public is taken to be other than the protected data.

    Args:
        data: The name of the data that the model was trained on.
        public: Whether these were declared to be public.
        protected: The name of the protected data.
    """
    if same_data(data, protected):
        return ", the protected data"
    return None if public else ", which may be the protected data under another name"


def _of_loss(context: NoiseContext) -> Iterator[str]:
    """Yield the assumptions about a loss that is not the task's default."""
    loss = context.local.loss
    if type(loss) is ClassWeights:
        weights = ", ".join(f"{weight:g}" for weight in loss.weights)
        yield f"The weights of the classes are public, and not taken from the labels: {weights}."
    elif loss is not None:
        name = getattr(loss, "__qualname__", type(loss).__name__)
        yield f"The loss {name}, not one of fedveil's, treats examples one by one and forgets them."
        yield (
            f"The loss {name} ran on made-up examples. Where it raises in training, the record or "
            "the client's step counts as zero, and nothing says so."
        )


def _graph(sums: SecureSums) -> Iterator[str]:
    """Say what a secure sum takes for granted of its server and of a sparse graph of masks."""
    graph = sums.params.topology(sums.cohort)
    if graph.security_failure > 0:
        yield (
            "Who masks with whom is drawn at random, and who is lost does not depend on it; with "
            f"probability {at_most(graph.security_failure, 2)} the graph hides less than the sum "
            "of all, which delta does not count."
        )
    if sums.params.honest_server:
        yield "The server of the secure sums does not lie about who has shared or was lost."


def not_covered(context: NoiseContext, trust: Trust) -> tuple[str, ...]:
    """Return sentences on what a run shows or holds beyond its releases."""
    sentences = list(test_examples(context.federation))
    if ARTIFICIAL_NOTE in context.federation.notes and not context.local.per_person:
        sentences.append(
            "A person: rows were dealt to artificial clients, and one client is a share."
        )
    if context.secure is not None and context.secure.params.honest_server:
        sentences.append(
            "A server that departs from the protocol: it is declared honest, and nobody checks "
            "whom it says to be lost."
        )
    if context.secure is not None and context.secure.mode is SecureMode.IDEAL:
        sentences.append(
            "Whoever runs this process: secure sums are ideal, taken without masks, and it sees "
            "what every client sends."
        )
    elif context.federation.elsewhere:
        sentences.append("Whoever runs a site: it holds that site's data, noise and keys.")
    elif trust is not Trust.CENTRAL:
        sentences.append("Whoever runs this process: it holds all clients' data, noise and keys.")
    return tuple(sentences)


def test_examples(federation: Federation) -> tuple[str, ...]:
    """Return a sentence about figures on the federation's test examples, if it has any."""
    held_out = HELD_OUT_NOTE in federation.notes  # perhaps of nobody, which must not show
    if not (held_out or len(federation.test)):
        return ()
    whose = ", which are the clients' own" if held_out else ""
    return (f"Test examples{whose}: loss, accuracy and other figures on them have no noise.",)


def _shape(federation: Federation) -> str:
    size = "x".join(map(str, federation.input_shape)) or "1"
    if federation.task is Task.REGRESSION:
        return f"{size} inputs, one number to predict"
    noun = "labels" if federation.task is Task.MULTI_LABEL else "classes"
    return f"{size} inputs, {federation.classes} {noun}"


def _foreign_data(federation: Federation) -> Iterator[str]:
    """Yield classes of others between the stored records and the model.

    A scaling or a column that looks at all records carries one record into others.
    """
    train = federation.train
    for part in (federation, train, federation.scaling, federation.bought):
        if part is not None and not is_own_object(part):
            yield type(part).__name__
    for column in (train.inputs, train.targets, federation.offsets):
        if type(column) not in (np.ndarray, np.memmap):
            yield type(column).__name__


def _foreign_parts(part: object) -> Iterator[object]:
    """Objects of somebody else anywhere in a method: what a subclass changes, no proof has seen."""
    if isinstance(part, tuple):
        for inner in part:
            yield from _foreign_parts(inner)
    elif part is not None and type(part) not in _PLAIN:
        if not is_own_object(part):
            yield part
        for each in fields(part) if is_dataclass(part) and not isinstance(part, type) else ():
            yield from _foreign_parts(getattr(part, each.name))


def _foreign(layer: nn.Module) -> bool:
    """A layer of somebody else, or one of ours that somebody listens to or has changed."""
    kind = type(layer)
    return not (is_own(kind) or is_own(kind, _LAYERS_OF_TORCH)) or not as_written(layer)
