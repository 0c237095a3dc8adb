"""Records back from uploads.

A first layer that is an affine map gives its input away: each row of its gradient is the input
times a number that the bias has by itself. With one record, however many local steps it took, the
update of the weights is the outer product of the bias's update and the record. In a sum over
several clients, a linear model's row for the victim's label (taken to be known) less the row of a
class that nobody has is the victim's record again, if no other has its label.
Networks that begin with anything else are not attacked: a record would have to be searched for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Task
from fedveil.planning.plan import Plan
from fedveil.training.models.flat import Slot
from fedveil_lab.audit.attack.uploads import Uploads

_CANDIDATES = 2000  # records among which the victim is looked for

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Resemblance:
    """How near the reconstructions from one view come.

    correlation: with the victim's record, mean over victims; one for a perfect image.
    found: victims whose record is the candidate that the reconstruction resembles most.
    """

    view: str
    correlation: float
    found: int
    victims: int


@dataclass(frozen=True)
class Reconstruction:
    """The images made of each view, as the model sees inputs: `images[view] [victims, ...]`."""

    candidates: int
    originals: Floats
    images: dict[str, Floats]
    likeness: tuple[Resemblance, ...]


def reconstruct(plan: Plan, sent: Uploads, *, seed: int) -> Reconstruction:
    """Attack every view of every victim's upload; a victim with several records shows its first.

    Raises:
        ConfigError: The model is for sequences or several labels, or begins with another layer.
    """
    federation, slots = sent.crowd, list(plan.layout)
    if federation.task in (Task.SEQUENCE, Task.MULTI_LABEL):
        raise ConfigError(f"attack: records of a {federation.task} model are not reconstructed")
    features = math.prod(federation.input_shape)
    if len(slots) < 2 or slots[0].shape[1:] != (features,) or len(slots[1].shape) != 1:
        raise ConfigError("attack: records are read off a first layer that is an affine map")
    records, weight, bias = int(federation.sizes[0]), *slots[:2]
    first = federation.train.inputs[: sent.victims * records]
    originals = plan.federation.model_inputs(np.asarray(first)).astype(np.float32)
    images: dict[str, Floats] = {}
    for view, rows in sent.views.items():
        affine = _divide(rows, weight, bias)
        if view.startswith("sum") and bias.shape == (federation.classes,):
            labels = np.asarray(federation.train.targets)[: len(rows) * records : records]
            affine = _differ(rows, weight, bias, torch.from_numpy(labels))
        images[view] = affine.reshape((-1, *federation.input_shape))
    candidates = _candidates(plan, originals, seed)
    likeness = tuple(
        _likeness(view, image, originals, candidates, records) for view, image in images.items()
    )
    return Reconstruction(len(candidates), originals[::records], images, likeness)


def _divide(rows: Tensor, weight: Slot, bias: Slot) -> Floats:
    """The input of the outer product that fits best, given the bias's part as it is."""
    outer = rows[:, weight.start : weight.stop].reshape(len(rows), *weight.shape)
    known = rows[:, bias.start : bias.stop]
    length = known.square().sum(dim=1, keepdim=True).clamp(min=1e-300)
    inputs: Floats = (torch.einsum("voi,vo->vi", outer, known) / length).float().numpy()
    return inputs


def _differ(rows: Tensor, weight: Slot, bias: Slot, labels: Tensor) -> Floats:
    """The row of each victim's label, less that of the class that seems to be nobody's."""
    outer = rows[:, weight.start : weight.stop].reshape(len(rows), *weight.shape)
    places = torch.arange(len(rows))
    known = rows[:, bias.start : bias.stop].clone()
    known[places, labels] = math.inf  # somebody has the victim's own
    nobody = known.argmin(dim=1)
    inputs: Floats = (outer[places, labels] - outer[places, nobody]).float().numpy()
    return inputs


def _candidates(plan: Plan, originals: Floats, seed: int) -> Floats:
    """Records among which a victim's is looked for: the victims' own, and other training ones."""
    train = plan.federation.train
    rows = np.random.default_rng([seed, 4]).permutation(len(train))[:_CANDIDATES]
    others = plan.federation.model_inputs(np.asarray(train.take(np.sort(rows)).inputs))
    own = originals.reshape(len(originals), -1)
    known = {row.tobytes() for row in own}
    flat = others.reshape(len(others), -1).astype(np.float32)
    return np.stack([*own, *(row for row in flat if row.tobytes() not in known)])


def _likeness(
    view: str, images: Floats, originals: Floats, candidates: Floats, records: int
) -> Resemblance:
    made, known = _standard(images.reshape(len(images), -1)), _standard(candidates)
    alike = made @ known.T  # correlations [victims, candidates]
    own = np.arange(len(originals)).reshape(len(images), records)
    best = np.array([alike[place, mine].max() for place, mine in enumerate(own)])
    nearest = alike.argmax(axis=1)
    # An image of one colour resembles nothing, and all alike.
    found = sum(int(nearest[n] in mine and alike[n].max() > 0) for n, mine in enumerate(own))
    return Resemblance(view, float(best.mean()), found, len(images))


def _standard(rows: Floats) -> npt.NDArray[np.float64]:
    centred = rows.astype(np.float64) - rows.mean(axis=1, keepdims=True)
    standard: npt.NDArray[np.float64] = centred / np.maximum(
        np.linalg.norm(centred, axis=1, keepdims=True), 1e-12
    )
    return standard
