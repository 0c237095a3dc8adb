"""Records back from uploads.

A first layer that is an affine map gives its input away: each row of its gradient is the input
times a number that the bias has by itself. With one record, however many local steps it took, the
update of the weights is the outer product of the bias's update and the record. In a sum over
several clients, a linear model's row for the victim's label (taken to be known) less the row of a
class that nobody has is the victim's record again, if no other has its label. Networks that begin
with convolutions are attacked by optimisation: look for a record whose gradient has the direction
of the update (Geiping et al. 2020), its label read off the last bias (Zhao et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Task
from fedveil.planning.plan import Plan
from fedveil.training.models.flat import Slot
from fedveil.training.models.losses import example_losses
from fedveil_lab.audit.attack.uploads import Uploads

_CANDIDATES = 2000  # records among which the victim is looked for
_VARIATION = 1e-2  # weight of total variation: images are smooth

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
    """What was made of each view, as the model sees inputs: `images[view] [victims, ...]`."""

    attack: str
    candidates: int
    originals: Floats
    images: dict[str, Floats]
    likeness: tuple[Resemblance, ...]


def reconstruct(
    plan: Plan,
    sent: Uploads,
    *,
    steps: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Reconstruction:
    """Attack every view of every victim's upload; a victim with several records shows its first."""
    federation = sent.crowd
    if federation.task in (Task.SEQUENCE, Task.MULTI_LABEL):
        raise ConfigError(f"attack: records of a {federation.task} model are not reconstructed")
    records = int(federation.sizes[0])
    first = federation.train.inputs[: sent.victims * records]
    originals = plan.federation.model_inputs(np.asarray(first)).astype(np.float32)
    slots = first_affine(plan)
    attack = "optimisation" if slots is None else "exact"
    images: dict[str, Floats] = {}
    for done, (view, rows) in enumerate(sent.views.items()):
        progress(done, len(sent.views))
        if slots is None:
            found = [_search(plan, row, steps, seed + place) for place, row in enumerate(rows)]
            images[view] = np.stack(found)
            continue
        affine = _divide(rows, *slots)
        if view.startswith("sum") and slots[1].shape == (federation.classes,):
            labels = np.asarray(federation.train.targets)[: len(rows) * records : records]
            affine = _differ(rows, *slots, torch.from_numpy(labels))
        images[view] = affine.reshape((-1, *federation.input_shape))
    candidates = _candidates(plan, originals, seed)
    likeness = tuple(
        _likeness(view, image, originals, candidates, records) for view, image in images.items()
    )
    return Reconstruction(attack, len(candidates), originals[::records], images, likeness)


def first_affine(plan: Plan) -> tuple[Slot, Slot] | None:
    """The weights and bias of a first layer that sees the flattened input; None if another does."""
    slots, features = list(plan.layout), math.prod(plan.federation.input_shape)
    if len(slots) > 1 and slots[0].shape[1:] == (features,) and len(slots[1].shape) == 1:
        return slots[0], slots[1]
    return None


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


def _search(plan: Plan, row: Tensor, steps: int, seed: int) -> Floats:
    """A record whose gradient at the shared weights points where the update came from."""
    federation, task = plan.federation, plan.federation.task
    weights = {
        name: view.detach().clone().requires_grad_()
        for name, view in plan.layout.views(plan.start).items()
    }
    wanted = -row.float()
    last = list(plan.layout)[-1]
    label = torch.tensor([int(row[last.start : last.stop].argmax())])
    low, high = _range(plan)
    generator = torch.Generator().manual_seed(seed)
    shape = (1, *federation.input_shape)
    guess = (low + (high - low) * torch.rand(shape, generator=generator)).requires_grad_()
    optimiser = torch.optim.Adam([guess], lr=0.1 * (high - low))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        outputs = functional_call(plan.module, weights, (guess,))
        loss = example_losses(task, outputs, label, plan.method.local.loss).sum()
        parts = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
        gradient = torch.cat([part.reshape(-1) for part in parts])
        cosine = torch.nn.functional.cosine_similarity(gradient, wanted, dim=0)
        far = 1 - cosine + _VARIATION * _variation(guess) / (high - low)
        (downhill,) = torch.autograd.grad(far, guess)
        guess.grad = downhill.sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            guess.clamp_(low, high)
    found: Floats = guess.detach()[0].numpy()
    return found


def _variation(images: Tensor) -> Tensor:
    """Mean difference of neighbours in both directions of `[1, h, w]` or `[1, h, w, colours]`."""
    if images.dim() < 3:
        return images.new_zeros(())
    return images.diff(dim=1).abs().mean() + images.diff(dim=2).abs().mean()


def _range(plan: Plan) -> tuple[float, float]:
    """Between which values inputs lie: public test examples tell."""
    inputs = plan.federation.model_inputs(np.asarray(plan.federation.test.inputs[:256]))
    return float(inputs.min()), float(inputs.max())


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
