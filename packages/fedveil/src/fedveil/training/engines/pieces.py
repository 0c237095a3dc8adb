"""Gradients of secret batches: a unit's own does not depend on who else is in its batch.

A secret batch varies in size, and one more record moves the others to other places of it. Kernels
may round otherwise in another shape or place, and a record with huge values turns such a rounding
into another gradient. So a batch is cut into pieces of one public size, the last one filled up.

Elementwise functions (GELU, sigmoid, ...) have other instructions, which round otherwise for some
values, for what does not fill whole vectors at the end of a tensor. So a piece holds a multiple of
32 records, which is what the widest vectors take at once, and every tensor in it ends with one. A
client's kernel has one thread, so no tensor is divided elsewhere. For sums of products, places are
tried: a size is used only if a made-up record has the same bits at every place. There a kernel
executes the same instructions whatever the values are. Sums of pieces are taken in double
precision.

Batches of persons go in pieces even if they are no secret: a person whose records are replaced may
have another number of them, which moves those of others. No person is cut across pieces. A record
goes through as a person of one record.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.core.arrays import Ints
from fedveil.data.federation import Task
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.contract import Job
from fedveil.training.engines.local_sgd import Gradients
from fedveil.training.engines.records import Batch, Packed, PersonBatch
from fedveil.training.models.check import token_limit
from fedveil.training.models.flat import flatten
from fedveil.training.models.structure import drawing_from

_SIZES = (64, 32)  # records in a piece, the fastest first: multiples of two vectors of 16 numbers
_WIDTHS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])  # to which persons are filled up
_TOGETHER = 4096  # records of persons that go together in simulations
_SIDE_BY_SIDE = 64  # pieces
_NO_CLIP = 2.0**200  # longer than any gradient of single-precision numbers
# Persons in a piece, by kernel, the number of records of a person, and the most records tried.
_KNOWN: WeakKeyDictionary[nn.Module, dict[tuple[type, int, int], int]] = WeakKeyDictionary()


class OfPersons(ABC):
    """Clipped gradients of one client's persons, or of its records.

    The gradient of a person with more records than go through the kernel together is formed first,
    piece by piece, and clipped then.

    Args:
        inner: Computes the sum of persons' clipped gradients, in double precision inside.
        widest: Records of a person that go through it together.
    """

    def __init__(self, inner: Gradients, widest: int) -> None:
        self._inner, self._widest = inner, widest

    def __call__(
        self,
        weights: Tensor,
        batch: PersonBatch | Batch,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        if clip is None:
            return self._inner(weights, batch, clip, denominator)
        if not isinstance(batch, PersonBatch):  # of single records
            inputs, targets, mask = batch
            real = inputs.shape[1] if mask is None else int(mask.sum())  # they come first
            batch = PersonBatch(inputs[0, :real], targets[0, :real], np.ones(real, np.int64))
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
        size: The number of persons in a piece, by their number of records; None: any.
    """

    def __init__(self, inner: Gradients, size: Callable[[int], int] | None) -> None:
        super().__init__(inner, _SIZES[0])
        self._size = size

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
            piece = most if self._size is None else self._size(width)
            for begin in range(0, len(own), piece):
                x, y, z = (_filled_up(one[begin : begin + piece], piece) for one in columns)
                yield x, y, z


def _filled_up(column: Tensor, count: int) -> Tensor:
    """Return a column of so many persons; those who are missing are zeros, their shares too."""
    missing = column.new_zeros(count - len(column), *column.shape[1:])
    return torch.cat([column, missing])[None].contiguous()


def in_pieces(job: Job, inner: Gradients, *, autograd: bool) -> Gradients:
    """Return gradients for a job's batches: in pieces if these are secret, or of persons.

    Args:
        job: What is trained; in simulations nothing is certified, and batches of records stay
            whole.
        inner: Computes gradients of a batch of one client.
        autograd: Whether it runs the module itself (see `records.model_rows`).
    """
    secret = job.rule.batch_rate is not None and job.rule.per_example and job.isolated
    if not (job.rule.per_person or secret):
        return inner
    if autograd:
        return PersonsByWidth(inner, partial(_size, job, inner, False) if job.isolated else None)
    # Of one record each: what is computed across a person's records is in double precision, whose
    # rounding is accounted for.
    return PackedPersons(inner, _size(job, inner, True, 1) if job.isolated else _SIZES[0])


def _size(job: Job, inner: Gradients, packed: bool, records: int) -> int:
    """Return how many persons of so many records a piece holds, whatever is in a batch."""
    expected = job.rule.batch_size or _SIZES[0]  # public; a small batch would be mostly filled up
    sizes = [size for size in _SIZES if size <= expected] or [_SIZES[-1]]
    known, key = _KNOWN.setdefault(job.module, {}), (type(inner), records, sizes[0])
    if key not in known:
        persons = dict.fromkeys(math.lcm(size, records) // records for size in sizes)
        with drawing_from(0):
            columns = _made_up(job, records, packed)
            fit = (one for one in persons if _same_at_every_place(job, inner, one, columns, packed))
            known[key] = next(fit, 1)  # alone in a piece, there is no other place
    return known[key]


def _same_at_every_place(
    job: Job, inner: Gradients, piece: int, unit: tuple[Tensor, ...], packed: bool
) -> bool:
    """Whether a unit's gradient is the same, bit for bit, at every place of a piece, and not zero.

    Beside the unit there are none, but for others of the same values that count for nothing.
    """
    if job.rule.gradient_clip is None:
        return False
    weights = flatten(job.module)
    with drawing_from(1):
        weights = (weights + 0.1 * torch.randn_like(weights))[None]
    *records, shares = (one.expand(piece, *one.shape[1:]) for one in unit)
    found = []
    for place in range(piece):
        here = torch.arange(piece) == place
        own = torch.where(here.view(-1, *(1,) * (shares.ndim - 1)), shares, 0.0)
        x, y, z = (column[None].contiguous() for column in (*records, own))
        owners = torch.where(here, 0, piece)[None]
        batch = Packed(x, y, z, owners) if packed else (x, y, z)
        found.append(inner(weights, batch, job.rule.gradient_clip, 1.0)[0].clone())
    return all(torch.equal(one, found[0]) for one in found) and bool(found[0].any())


def _made_up(job: Job, records: int, packed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return one unit of random records, as kernels see it: inputs, targets and shares."""
    federation, limit = job.federation, token_limit(job.module, job.federation)
    lead = (1,) if packed else (1, records)
    shape, own = (*lead, *federation.input_shape), (*lead, *federation.train.targets.shape[1:])
    inputs = torch.randn(shape) if limit is None else torch.randint(limit, shape)
    if federation.task is Task.REGRESSION:
        targets = torch.randn(own)
    else:
        classes = 2 if federation.task is Task.MULTI_LABEL else federation.classes
        targets = torch.randint(classes, own)
    return inputs, targets, torch.full(lead, 1 / records)
