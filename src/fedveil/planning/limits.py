"""What one run adds to a guarantee's list: what was declared public, what is not covered.

And what spoils it: private data that entered without noise, or parts that nobody has proved.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fedveil.data.declared import SET_ASIDE
from fedveil.data.federation import ARTIFICIAL_NOTE, HELD_OUT_NOTE, Federation, Task
from fedveil.local.rule import LocalRule
from fedveil.local.shaping import Shaping
from fedveil.methods.central_noise import CentralNoise
from fedveil.methods.clip_rules import ClipTracking, StepBound
from fedveil.methods.gradient_noise import GradientNoise
from fedveil.methods.local_noise import LocalNoise
from fedveil.methods.method import Method
from fedveil.methods.noisy_votes import VoteNoise
from fedveil.methods.protection import Protection, Terms
from fedveil.methods.shared_noise import SharedNoise
from fedveil.privacy.clipping import Clip
from fedveil.privacy.units import Trust
from fedveil.secagg.mode import Mode

# By exact class: what a subclass changes, no proof has seen.
_PROVED = (CentralNoise, LocalNoise, SharedNoise, GradientNoise, VoteNoise)
_PROVED_PARTS = (LocalRule, Shaping, Clip, ClipTracking, StepBound, type(None))
_UNPROVED = "{} is none of fedveil's own parts: nothing is proved of it."
_KNOWN_LAYERS = ("torch.nn.", "fedveil.models.")


def unprotected(method: Method, protection: Protection, terms: Terms) -> tuple[str, ...]:
    """What came from private data without noise, or from code without a proof."""
    found = list(terms.federation.unprotected)
    held_out = HELD_OUT_NOTE in terms.federation.notes and SET_ASIDE not in found
    if terms.shaping.ballot is not None and held_out:
        found.append(SET_ASIDE)
    parts: tuple[Any, ...] = (method.local, method.shaping, method.shaping.clip, method.clip_rule)
    if type(protection) not in _PROVED:
        found.append(_UNPROVED.format(type(protection).__name__))
    for part in parts:
        if type(part) not in _PROVED_PARTS:
            found.append(_UNPROVED.format(type(part).__name__))
    return tuple(found)


def declared(terms: Terms) -> tuple[str, ...]:
    """What has to be public, or made without the protected data, because nothing hides it."""
    federation = terms.federation
    found = [
        f"The model's shape is public: {_shape(federation)}; so is how inputs are scaled.",
        "The initial weights were made without the protected data.",
    ]
    if terms.shaping.ballot is not None:
        found.append(f"The {len(terms.shaping.ballot.inputs)} inputs that are voted on are public.")
    own = sorted({type(layer).__name__ for layer in terms.module.modules() if _foreign(layer)})
    if own:
        found.append(
            f"Layers that are not fedveil's ({', '.join(own)}) treat examples one by one and "
            "remember nothing of them."
        )
    return tuple(found)


def not_covered(terms: Terms, trust: Trust) -> tuple[str, ...]:
    """What a run shows or holds beyond its releases."""
    found = list(test_examples(terms.federation))
    if ARTIFICIAL_NOTE in terms.federation.notes:
        found.append("A person: rows were dealt to artificial clients, and one client is a share.")
    if terms.secure is not None and terms.secure.mode is Mode.MODELLED:
        found.append(
            "Whoever runs this process: secure sums are modelled, without masks, and it sees what "
            "every client sends."
        )
    elif trust is not Trust.CENTRAL:
        found.append("Whoever runs this process: it holds all clients' data, noise and keys.")
    return tuple(found)


def test_examples(federation: Federation) -> tuple[str, ...]:
    """What is said about figures that are measured on the federation's test part."""
    if not len(federation.test):
        return ()
    whose = ", which are the clients' own" if HELD_OUT_NOTE in federation.notes else ""
    return (f"Test examples{whose}: loss and accuracy on them have no noise.",)


def _shape(federation: Federation) -> str:
    size = "x".join(map(str, federation.input_shape)) or "1"
    if federation.task is Task.REGRESSION:
        return f"{size} inputs, one number to predict"
    return f"{size} inputs, {federation.classes} classes"


def _foreign(layer: nn.Module) -> bool:
    return not f"{type(layer).__module__}.".startswith(_KNOWN_LAYERS)
