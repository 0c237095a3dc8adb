"""Gradients of secret batches: a unit's own does not depend on who else is in its batch.

A secret batch varies in size, and one more record moves the others to other places of it. Kernels
may round otherwise in another shape or place, and a record with huge values turns such a rounding
into another gradient. So a batch is cut into pieces of one public size, the last one filled up,
and a kernel is used in pieces only if it gives the same bits at every place of a piece, which is
tried on made-up examples. Kernels execute the same instructions whatever the values are, so what
holds for made-up examples holds for all. Sums of pieces are taken in double precision.

Batches of persons go in pieces even if they are no secret: a person whose records are replaced may
have another number of them, which moves those of others. No person is cut across pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.core.arrays import Ints
from fedveil.data.federation import Task
from fedveil.data.unusable import no_target
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.contract import Job
from fedveil.training.engines.local_sgd import Gradients
from fedveil.training.engines.records import Batch, Packed, PersonBatch
from fedveil.training.models.check import token_limit
from fedveil.training.models.flat import flatten
from fedveil.training.models.structure import drawing_from

Fill = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_SIZES = (64, 16, 4)  # of pieces, the fastest first; in a piece of one every place is the same
_WIDTHS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])  # to which persons are filled up
_TOGETHER = 4096  # records of persons that go together in simulations
_SIDE_BY_SIDE = 64  # pieces
_NO_CLIP = 2.0**200  # longer than any gradient of single-precision numbers
# The size of pieces, by kernel and the number of records of a person in them (0: no persons).
_KNOWN: WeakKeyDictionary[nn.Module, dict[tuple[type, int], int]] = WeakKeyDictionary()
_KNOWN_PERSONS: WeakKeyDictionary[nn.Module, dict[tuple[type, int], tuple[int, ...]]] = (
    WeakKeyDictionary()
)


class InPieces:
    """Clipped gradients of a client's secret batch, in pieces.

    Args:
        inner: Computes the sum of clipped gradients of one piece, in double precision inside.
        piece: Examples in a piece.
        unusable: Makes an example's inputs and target, `[...]`, such that its gradient is not
            finite and counts as zero: pieces are filled up with it.
    """

    def __init__(self, inner: Gradients, piece: int, unusable: Fill) -> None:
        self._inner, self._piece, self._unusable = inner, piece, unusable

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        if clip is None:
            return self._inner(weights, batch, clip, denominator)
        inputs, targets, mask = batch
        total, losses = torch.zeros_like(weights, dtype=torch.float64), weights.new_zeros(1)
        real = inputs.shape[1] if mask is None else int(mask.sum())  # they come first
        for begin in range(0, real, self._piece):
            end = min(begin + self._piece, real)
            part = self._filled(inputs[0, begin:end], targets[0, begin:end])
            gradient, _ = self._inner(weights, part, clip, denominator)
            total += gradient
        return total.to(weights.dtype), losses

    def _filled(self, inputs: Tensor, targets: Tensor) -> Batch:
        missing = self._piece - len(inputs)
        if missing:
            filling = self._unusable(inputs[:1], targets[:1])
            inputs, targets = (
                torch.cat([part, one.expand(missing, *one.shape[1:])])
                for part, one in zip((inputs, targets), filling, strict=True)
            )
        return inputs[None].contiguous(), targets[None].contiguous(), None


class OfPersons(ABC):
    """Clipped gradients of one client's persons.

    The gradient of a person with more records than go through the kernel together is formed first,
    piece by piece, and clipped then.

    Args:
        inner: Computes the sum of persons' clipped gradients, in double precision inside.
        widest: Records of a person that go through it together.
    """

    def __init__(self, inner: Gradients, widest: int) -> None:
        self._inner, self._widest = inner, widest

    def __call__(
        self, weights: Tensor, batch: PersonBatch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        if clip is None:
            raise ValueError("gradients of persons are clipped")
        total, losses = torch.zeros_like(weights, dtype=torch.float64), weights.new_zeros(1)
        begins = np.cumsum(batch.counts) - batch.counts
        for person in np.flatnonzero(batch.counts > self._widest):
            own = slice(int(begins[person]), int(begins[person] + batch.counts[person]))
            found = self._alone(weights, batch.inputs[own], batch.targets[own], clip)
            total += found[0] / denominator
            losses += found[1]
        few = batch.counts <= self._widest
        parts = self._parts(batch, begins[few], batch.counts[few])
        for gradient, loss in self._sums(weights, parts, clip, denominator):
            total += gradient
            losses += loss
        return total.to(weights.dtype), losses / max(1, len(batch.counts))

    def _alone(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, clip: GradientClip
    ) -> tuple[Tensor, Tensor]:
        """Return one person's clipped gradient in double precision, and its loss."""
        total, losses = torch.zeros_like(weights, dtype=torch.float64), weights.new_zeros(1)
        counts = np.full(-(-len(inputs) // self._widest), self._widest)
        counts[-1] = len(inputs) - counts[:-1].sum()
        for begin, count in zip(np.cumsum(counts) - counts, counts, strict=True):
            own = slice(int(begin), int(begin + count))
            alone = PersonBatch(inputs[own], targets[own], np.array([count]))
            parts = self._parts(alone, np.zeros(1, np.int64), alone.counts)
            share = float(count) / len(inputs)
            for gradient, loss in self._sums(weights, parts, replace(clip, norm=_NO_CLIP), 1.0):
                total += gradient.double() * share
                losses += loss * share
        norm = total.cpu().norm()[None]
        slack = (total.numel() + 64) * 2.0**-52
        factor = clip_factors(norm, Clip(clip.norm), relative_error=slack).to(total)
        return torch.where(factor > 0, total * factor, 0.0), losses

    @abstractmethod
    def _parts(self, batch: PersonBatch, begins: Ints, counts: Ints) -> Iterator[Any]:
        """Yield batches for the kernel of the persons whose records begin there."""

    def _sums(
        self, weights: Tensor, parts: Iterator[Any], clip: GradientClip, denominator: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield sums of clipped gradients `[1, parameters]`, and of losses `[1]`."""
        for part in parts:
            rows = weights.expand(len(part[0]), -1)
            gradients, losses = self._inner(rows, part, clip, denominator)
            yield gradients.sum(0, keepdim=True, dtype=torch.float64), losses.sum(0, keepdim=True)


class PackedPersons(OfPersons):
    """Many persons in pieces of one public number of places, side by side, for affine layers."""

    def _parts(self, batch: PersonBatch, begins: Ints, counts: Ints) -> Iterator[Packed]:
        places = self._widest
        starts, used = np.zeros(len(counts), np.int64), 0  # each person's first place
        for person, count in enumerate(counts.tolist()):
            if used % places + count > places or (used and used % places == 0):
                used = -(-used // places) * places
            starts[person] = used
            used += count
        pieces = -(-used // places)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        where = np.repeat(starts, counts) + within
        rows, owners = np.zeros(pieces * places, np.int64), np.full(pieces * places, places)
        shares = np.zeros(pieces * places, np.float32)
        rows[where] = np.repeat(begins, counts) + within
        owners[where] = np.repeat(starts % places, counts)
        shares[where] = np.repeat(1 / counts, counts)
        device = batch.inputs.device
        columns = [torch.from_numpy(one).to(device) for one in (rows, shares, owners)]
        for begin in range(0, pieces, _SIDE_BY_SIDE):
            own = slice(begin * places, (begin + _SIDE_BY_SIDE) * places)
            chosen, share, owner = (one[own] for one in columns)
            x, y = (part.index_select(0, chosen) for part in (batch.inputs, batch.targets))
            yield Packed(*(one.view(-1, places, *one.shape[1:]) for one in (x, y, share, owner)))


class PersonsByWidth(OfPersons):
    """Persons filled up to a few numbers of records, those of one number together.

    Args:
        inner: As above, from inputs, targets and shares `[1, persons, records, ...]`.
        sizes: Numbers of persons that a piece may have, by their number of records, falling; None:
            any.
    """

    def __init__(self, inner: Gradients, sizes: Callable[[int], Sequence[int]] | None) -> None:
        super().__init__(inner, _SIZES[0])
        self._sizes = sizes

    def _parts(self, batch: PersonBatch, begins: Ints, counts: Ints) -> Iterator[Batch]:
        widths = _WIDTHS[np.searchsorted(_WIDTHS, counts)]
        for width in np.unique(widths).tolist():
            own, places = np.flatnonzero(widths == width), np.arange(width)
            count = counts[own][:, None]
            rows = begins[own][:, None] + np.minimum(places, count - 1)
            shares = np.where(places < count, 1 / count, 0.0).astype(np.float32)
            index = torch.from_numpy(rows).to(batch.inputs.device)
            columns = (
                batch.inputs[index],
                batch.targets[index],
                torch.from_numpy(shares).to(index.device),
            )
            most = min(len(own), max(1, _TOGETHER // width))
            sizes, begin = (most,) if self._sizes is None else self._sizes(width), 0
            while begin < len(own):
                left = len(own) - begin
                piece = next((size for size in sizes if size <= left), sizes[-1])
                x, y, z = (_filled_up(one[begin : begin + piece], piece) for one in columns)
                yield x, y, z
                begin += piece


def _filled_up(column: Tensor, count: int) -> Tensor:
    """Return a column of so many persons; those who are missing are zeros, their shares too."""
    missing = column.new_zeros(count - len(column), *column.shape[1:])
    return torch.cat([column, missing])[None].contiguous()


def in_pieces(job: Job, inner: Gradients, *, autograd: bool) -> Gradients:
    """Return gradients for a job's batches: in pieces if these are secret, or of persons.

    Args:
        job: What is trained; in simulations nothing is certified, and batches stay whole.
        inner: Computes gradients of a batch of one client.
        autograd: Whether it runs the module itself (see `records.model_rows`).
    """
    if job.rule.per_person and autograd:
        return PersonsByWidth(inner, partial(_person_pieces, job, inner) if job.isolated else None)
    if job.rule.per_person:
        return PackedPersons(inner, _places(job, inner) if job.isolated else _SIZES[0])
    if job.rule.batch_rate is None or not job.rule.per_example or not job.isolated:
        return inner

    def unusable(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if autograd:
            return inputs, torch.full_like(targets, no_target(job.federation.task))
        return torch.full_like(inputs, torch.nan), targets

    known, key = _KNOWN.setdefault(job.module, {}), (type(inner), 0)
    if key not in known:
        with drawing_from(0):
            one = _made_up(job, 1)
            columns = tuple(zip(one, unusable(*one), strict=True))
            tried = ((n, _at_every_place(job, inner, n, columns)) for n in _SIZES)
            fits = (n for n, one in tried if one is not None)
            known[key] = next(fits, 1)
    return InPieces(inner, known[key], unusable)


def _person_pieces(job: Job, inner: Gradients, records: int) -> tuple[int, ...]:
    """Return how many persons of so many records a piece may hold, falling.

    Of the first size and all others a person has the same gradient, so that others may decide how
    a batch is cut.
    """
    known, key = _KNOWN_PERSONS.setdefault(job.module, {}), (type(inner), records)
    if key not in known:
        with drawing_from(0):
            inputs, targets = (one[None] for one in _made_up(job, records))
            # Beside the person there are none, or others of the same values.
            shares = torch.full((1, records), 1 / records)
            columns = ((inputs, inputs), (targets, targets), (shares, torch.zeros_like(shares)))
            sizes = dict.fromkeys(max(1, size // records) for size in (*_SIZES, 1))
            tried = ((n, _at_every_place(job, inner, n, columns)) for n in sizes)
            found = [(n, one) for n, one in tried if one is not None]
            same = tuple(n for n, one in found if torch.equal(one, found[0][1]))
            known[key] = same or (1,)  # a gradient of zero shows nothing, and one place is one
    return known[key]


def _places(job: Job, inner: Gradients) -> int:
    """Return how many records of persons go into a piece.

    Of one record each: what is computed across a person's records is in double precision, whose
    rounding is accounted for.
    """
    known, key = _KNOWN.setdefault(job.module, {}), (type(inner), 1)
    if key not in known:
        with drawing_from(0):
            inputs, targets = _made_up(job, 1)
            one, whose = torch.ones(1), torch.zeros(1, dtype=torch.int64)
            same = ((inputs, inputs), (targets, targets), (one, torch.zeros(1)))
            tried = (
                (n, _at_every_place(job, inner, n, (*same, (whose, whose + n)), Packed))
                for n in _SIZES
            )
            fits = (n for n, found in tried if found is not None)
            known[key] = next(fits, 1)
    return known[key]


def _at_every_place(
    job: Job,
    inner: Gradients,
    piece: int,
    columns: tuple[tuple[Tensor, Tensor], ...],
    kind: Callable[..., Any] = lambda *columns: (*columns, None)[:3],
) -> Tensor | None:
    """Return a unit's gradient if it is the same, bit for bit, at every place of a piece.

    Args:
        job: What is trained.
        inner: The kernel.
        piece: Units in a piece.
        columns: Of each column of a batch, a made-up unit `[1, ...]` and what stands elsewhere.
        kind: Makes a batch of its columns.
    """
    if job.rule.gradient_clip is None:
        return None
    weights = flatten(job.module)
    with drawing_from(1):
        weights = (weights + 0.1 * torch.randn_like(weights))[None]
    found = []
    for place in range(piece):
        around = torch.arange(piece) == place
        both = (torch.where(_as_wide(around, unit), unit, other) for unit, other in columns)
        batch = kind(*(column[None] for column in both))
        found.append(inner(weights, batch, job.rule.gradient_clip, 1.0)[0].clone())
    same = all(torch.equal(one, found[0]) for one in found) and bool(found[0].any())
    return found[0] if same else None


def _as_wide(choice: Tensor, values: Tensor) -> Tensor:
    return choice.view(-1, *(1,) * (values.ndim - 1))


def _made_up(job: Job, count: int) -> tuple[Tensor, Tensor]:
    """Return random examples `[count, ...]` of the shape and kind that the model sees."""
    federation, limit = job.federation, token_limit(job.module, job.federation)
    shape = (count, *federation.input_shape)
    inputs = torch.randn(shape) if limit is None else torch.randint(limit, shape)
    own = tuple(federation.train.targets.shape[1:])
    if federation.task is Task.REGRESSION:
        return inputs, torch.randn(count, *own)
    classes = 2 if federation.task is Task.MULTI_LABEL else federation.classes
    return inputs, torch.randint(classes, (count, *own))
