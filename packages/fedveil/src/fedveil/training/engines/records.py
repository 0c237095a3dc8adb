"""The records that a chunk of clients trains on, gathered from a federation's columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.arrays import Ints
from fedveil.data.federation import Federation
from fedveil.data.unusable import no_target
from fedveil.training.client.batches import Batches
from fedveil.training.models.tensors import as_tensor

# Inputs and targets `[clients, batch, ...]`, and which records are real (None: all). In pieces also
# what each record counts for in its person's mean, with an axis more: `[1, persons, records, ...]`.
Batch = tuple[Tensor, Tensor, Tensor | None]


class PersonBatch(NamedTuple):
    """One client's batch of persons.

    Attributes:
        inputs: Of all their records, those of a person one after the other, `[records, ...]`.
        targets: Theirs, `[records, ...]`.
        counts: How many records each person has, `[persons]`, none of them 0.
    """

    inputs: Tensor
    targets: Tensor
    counts: Ints


class Packed(NamedTuple):
    """Records of persons in pieces, for kernels that compute many at once.

    Attributes:
        inputs: `[pieces, places, ...]`.
        targets: `[pieces, places, ...]`.
        shares: What each record counts for in its person's mean; 0 at places that fill up.
        owners: Which person of the piece a place belongs to, `[pieces, places]`.
    """

    inputs: Tensor
    targets: Tensor
    shares: Tensor
    owners: Tensor


class Records:
    """The records of each local step of a chunk of clients.

    Clients come in order of falling step counts, so that those still training are the first rows.
    Records are gathered once: in the order of the steps if no record is used twice, else client by
    client, padded to the largest. Padding repeats real records and is masked.
    """

    def __init__(
        self,
        federation: Federation,
        clients: Ints,
        sizes: Ints,
        batches: Batches,
        device: torch.device | None = None,
        *,
        autograd: bool = False,
    ) -> None:
        self._federation, self._clients, self._sizes = federation, clients, sizes
        self._device, self._autograd = device, autograd
        self._batches, self.steps = batches, batches.steps
        _, drawn, batch = batches.positions.shape
        self._in_order = drawn * batch <= int(sizes.max(initial=0)) and not batches.full
        if self._in_order:
            where = np.where(batches.mask, batches.positions, 0).transpose(1, 0, 2)
            starts = federation.offsets[clients][:, None]
            self.inputs, self.targets = self._take(starts + where)  # [steps, clients, batch, ...]
        else:
            self.inputs, self.targets = self._padded()  # [clients, most, ...]
        order = np.arange(batches.most_steps)
        self.active = (batches.steps[:, None] > order).sum(axis=0).tolist()

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def most_steps(self) -> int:
        return len(self.active)

    def batch(self, step: int) -> Batch:
        """The batches of the clients that take this step, `[active, batch, ...]`."""
        active, place = self.active[step], 0 if self._batches.full else step
        real = self._batches.mask[:active, place]
        mask = None if bool(real.all()) else self._tensor(real)
        if self._in_order:
            return self.inputs[step, :active], self.targets[step, :active], mask
        if self._batches.full:
            return self.inputs[:active], self.targets[:active], mask
        rows = self._rows[step, :active].reshape(-1)
        inputs, targets = (
            column.flatten(0, 1).index_select(0, rows).view(*real.shape, *column.shape[2:])
            for column in (self.inputs, self.targets)
        )
        return inputs, targets, mask

    def everything(self) -> Batch:
        """All records of all clients, `[clients, most, ...]`."""
        inputs, targets = self._padded() if self._in_order else (self.inputs, self.targets)
        mask = np.arange(inputs.shape[1]) < self._sizes[:, None]
        return inputs, targets, None if bool(mask.all()) else self._tensor(mask)

    @cached_property
    def _rows(self) -> Tensor:
        """Row of each drawn record in the padded chunk, `[steps, clients, batch]`."""
        first = np.arange(len(self._clients)) * self.inputs.shape[1]
        rows = (first[:, None, None] + self._batches.positions).transpose(1, 0, 2)
        return self._tensor(np.ascontiguousarray(rows))

    def _padded(self) -> tuple[Tensor, Tensor]:
        starts = self._federation.offsets[self._clients]
        if len(starts) == 1:  # neighbours in the column: nothing to copy
            return self._take(slice(int(starts[0]), int(starts[0] + self._sizes[0])), lead=True)
        places = np.arange(int(self._sizes.max()))
        return self._take(starts[:, None] + np.minimum(places, self._sizes[:, None] - 1))

    def _take(self, rows: slice | Ints, lead: bool = False) -> tuple[Tensor, Tensor]:
        found = model_rows(self._federation, rows, autograd=self._autograd)
        pair = self._tensor(found[0]), self._tensor(found[1])
        return (pair[0][None], pair[1][None]) if lead else pair

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return as_tensor(np.ascontiguousarray(array)).to(self._device)


class PersonRecords:
    """The records of each local step of one client, where persons are protected.

    A person none of whose records is usable contributes nothing.
    """

    def __init__(
        self,
        federation: Federation,
        client: int,
        batches: Batches,
        device: torch.device | None = None,
        *,
        autograd: bool = False,
    ) -> None:
        spans = federation.persons
        starts = spans.starts[spans.offsets[client] : spans.offsets[client + 1] + 1]
        self._rows = np.arange(starts[0], starts[-1])
        if federation.train.usable is not None:
            self._rows = self._rows[federation.train.usable[starts[0] : starts[-1]]]
        self._begins = np.searchsorted(self._rows, starts)
        self._federation, self._batches = federation, batches
        self._device, self._autograd = device, autograd
        self.steps = batches.steps
        self.active = [1] * int(batches.steps[0])
        self._whole: PersonBatch | None = None  # if all steps see all persons

    def __len__(self) -> int:
        return 1

    @property
    def most_steps(self) -> int:
        return len(self.active)

    def batch(self, step: int) -> PersonBatch:
        """Return the batch of a step."""
        if self._whole is not None:
            return self._whole
        positions, mask = self._batches.at(step)
        persons = positions[0][mask[0]]
        counts = np.diff(self._begins)[persons]
        persons, counts = persons[counts > 0], counts[counts > 0]
        ends = np.cumsum(counts)
        within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        rows = self._rows[np.repeat(self._begins[persons], counts) + within]
        found = model_rows(self._federation, rows, autograd=self._autograd)
        inputs, targets = (as_tensor(part).to(self._device) for part in found)
        batch = PersonBatch(inputs, targets, counts)
        if self._batches.full:
            self._whole = batch
        return batch


def model_rows(
    federation: Federation, rows: slice | Ints, *, autograd: bool = False
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Training examples as gradients read them, with unusable ones marked.

    Args:
        federation: Whose training examples.
        rows: Which of them.
        autograd: How gradients are computed. By hand, an unusable example has NaN for inputs. By
            autograd, it has a target that is none: its inputs stay fit for any model, and
            `models.losses` gives it a loss of NaN. Either way its gradient is not finite, and
            counts as zero.

    Returns:
        Inputs as the model sees them, and targets.
    """
    train = federation.train
    inputs = federation.model_inputs(_rows(train.inputs, rows))
    targets = _rows(train.targets, rows)
    wrong = None if train.usable is None else ~train.usable[rows]
    if wrong is None or not wrong.any():
        return inputs, targets
    if autograd:
        targets = aligned(targets)
        targets[wrong] = no_target(federation.task)
    else:
        inputs = aligned(inputs)
        inputs[wrong] = np.nan
    return inputs, targets


def aligned(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """A copy in memory of torch's own, which starts at a multiple of 64 bytes wherever the array
    was: the results of some kernels depend on that."""
    return as_tensor(np.ascontiguousarray(array)).clone().numpy()


def _rows(column: npt.NDArray[np.generic], rows: slice | Ints) -> npt.NDArray[np.generic]:
    """Rows of a column: a view, or gathered into aligned memory where torch knows the type."""
    if isinstance(rows, slice) or column.dtype not in (np.float32, np.int64):
        return column[rows]
    found = as_tensor(column).index_select(0, torch.from_numpy(rows.reshape(-1)))
    return found.view(*rows.shape, *column.shape[1:]).numpy()
