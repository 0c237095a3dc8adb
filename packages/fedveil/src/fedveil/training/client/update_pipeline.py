"""What happens to an update before it leaves the client: sparsify, clip, weigh, rotate, snap.

Or, where clients vote instead of sending updates, how their trained weights become votes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.arguments import (
    check_fields,
    count,
    instance_of,
    optional,
    plain_numbers,
    positive,
    share,
)
from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.core.units import Unit
from fedveil.privacy.clipping import Clip, clip_factors, clip_rows, row_norms
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.noise.grid import snap_conditional, snap_rows
from fedveil.training.client.ballot import Ballot
from fedveil.training.client.rotation import Rotation
from fedveil.training.models.flat import Layout


class ClientStatistic(Protocol):
    """A vector that a client sends instead of an update; it follows from its records alone.

    Every entry is a whole number of grid steps, so that sums over records and over clients are
    exact whatever their order.
    """

    @property
    def width(self) -> int:
        """How many numbers a client sends."""
        ...

    @property
    def granularity(self) -> float:
        """The step of the grid, a power of two."""
        ...

    @property
    def unit(self) -> Unit:
        """Whom it bounds: under unit person, all records of each of a client's persons."""
        ...

    def prepare(self, inputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Ints:
        """Return usable records of any clients as whole numbers, each by itself, bit for bit.

        Args:
            inputs: As the model sees them, `[records, ...]`.
            targets: `[records]`, or `[records, labels]`.

        Returns:
            What `__call__` sums, `[records, numbers]`.
        """
        ...

    def __call__(self, records: Ints, persons: Ints | None = None) -> Ints:
        """Return the statistic `[width]`, in grid steps, of one client's prepared records.

        Args:
            records: What `prepare` returned.
            persons: Under unit person, person `i` has `records[persons[i]:persons[i + 1]]`.
        """
        ...


@dataclass(frozen=True)
class UpdatePipeline:
    """How a client shapes what it sends.

    Attributes:
        clip: The largest norm of an update; None: any.
        sparsity: Share of each tensor's entries set to zero by LUS (those with the smallest
            |gradient x update|).
        weight_cap: Weighs an update by `min(examples, cap) / cap`, so that no weight exceeds one;
            None weighs all clients alike.
        granularity: Snaps the clipped update to a grid of that step and makes the sum an integer
            one; the norm bound holds after snapping.
        rotation: Rotates the clipped update before it is snapped.
        rounding_beta: Rounds at random until the norm is one that holds with probability 1 - beta.
            The mechanism's own, slightly larger, norm bound takes the clip's place.
        ballot: Votes are sent instead of the update.
        statistic: A statistic of the client's records is sent, and nobody trains.
    """

    clip: Clip | None = None
    sparsity: float = 0.0
    weight_cap: int | None = None
    granularity: float | None = None
    rotation: Rotation | None = None
    rounding_beta: float | None = None
    ballot: Ballot | None = None
    statistic: ClientStatistic | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(self, clip=optional(instance_of(Clip)), sparsity=share)
        check_fields(self, weight_cap=optional(count), granularity=optional(positive))
        if self.granularity is not None and self.clip is None:
            raise ConfigError("granularity: an integer sum needs a clip, or it may overflow")
        if self.granularity is None and (self.rotation or self.rounding_beta is not None):
            raise ConfigError("rotation, rounding_beta: they belong to a grid, and none is set")

    @property
    def only_clips(self) -> bool:
        """Whether what leaves is the update times one number: nothing looks at single entries."""
        plain = self.sparsity == 0 and self.granularity is None
        return plain and self.ballot is None and self.statistic is None

    def scaled(self, scale: float) -> UpdatePipeline:
        """Return the pipeline of a client that clips to `scale` times the clip, on one grid."""
        if scale == 1 or self.clip is None:
            return self
        return replace(self, clip=replace(self.clip, norm=self.clip.norm * scale))

    def width(self, layout: Layout) -> int:
        """How many numbers a client sends."""
        if self.ballot is not None:
            return self.ballot.width
        if self.statistic is not None:
            return self.statistic.width
        return layout.size if self.rotation is None else self.rotation.width(layout.size)

    def weights(self, sizes: Ints) -> npt.NDArray[np.float32]:
        """The weight of clients of these sizes, at most 1, `[clients]`."""
        if self.weight_cap is None:
            return np.ones(len(sizes), dtype=np.float32)
        return (np.minimum(sizes, self.weight_cap) / self.weight_cap).astype(np.float32)

    def factors(self, norms: Tensor, sizes: Ints) -> Tensor:
        """Return the factors of updates for clients of these finite norms and sizes, `[clients]`.

        All that happens to an update if shaping `only_clips`.
        """
        factors = torch.ones_like(norms) if self.clip is None else clip_factors(norms, self.clip)
        if self.weight_cap is not None:
            factors = factors * torch.from_numpy(self.weights(sizes))
        return factors


@dataclass(frozen=True)
class TrainedClients:
    """Some clients in a round: who they are, and the weights they trained from.

    Attributes:
        clients: Their numbers in the federation, `[clients]`.
        sizes: How many examples each holds, `[clients]`.
        weights: The shared weights at the start of the round, `[parameters]`.
        round_number: The round, from 0.
        randomness: The streams that their own random choices are drawn from.
    """

    clients: Ints
    sizes: Ints
    weights: Tensor
    round_number: int
    randomness: Randomness


@dataclass(frozen=True)
class Block:
    """Shaped updates of some clients of a cohort: the unit in which engines hand updates on.

    The norms and losses describe single clients without noise, so a protected run must neither
    show nor keep them.

    Attributes:
        places: The clients' positions in the cohort, `[clients]`.
        updates: Their shaped updates, `[clients, width]`, or only the sum of these, `[width]`, if
            the engine forms no single update. int64 in steps of the grid, or floating point.
        norms: The norm of each update before clipping, in the clip's order (otherwise L2).
        shaped_norms: The norm of each update after shaping.
        losses: The mean batch loss over each client's local steps, each before its step.
        rejected: How many clients' updates were not finite and count as zero.
    """

    places: Ints
    updates: Tensor
    norms: Tensor
    shaped_norms: Tensor
    losses: Tensor
    rejected: int = 0

    @property
    def rows(self) -> Tensor | None:
        """The single updates, `[clients, width]`; None if only their sum was formed."""
        return self.updates if self.updates.dim() == 2 else None

    @property
    def total(self) -> Tensor:
        """The sum of the updates, `[width]`."""
        if self.updates.dim() == 1:
            return self.updates
        return self.updates[0] if len(self.updates) == 1 else self.updates.sum(dim=0)

    def at(self, places: Ints) -> Block:
        """Return this block with its clients at other positions of a cohort."""
        return replace(self, places=places[self.places])


def shape_rows(
    updates: Tensor,
    pipeline: UpdatePipeline,
    layout: Layout,
    senders: TrainedClients,
    gradient: Tensor | None = None,
) -> Block:
    """Shape updates into what leaves the clients.

    An update that is not finite becomes zero: it must neither poison the sum nor say anything about
    the others. What a client sends depends on its own row alone, bit for bit, unless the pipeline
    `only_clips`.

    Args:
        updates: The updates, `[clients, parameters]`; they may be overwritten.
        pipeline: How they are shaped.
        layout: Where each tensor of the model lies in an update.
        senders: Whose updates they are.
        gradient: Each client's gradient at its final weights; only LUS needs it.

    Returns:
        A block with rows. Its clients stand at the positions 0, 1, ...; its losses are zero.
    """
    order = pipeline.clip.order if pipeline.clip is not None else 2
    finite = torch.isfinite(torch.linalg.vector_norm(updates, dim=1))  # quick, and may overflow
    if not bool(finite.all()):
        finite = torch.isfinite(updates).all(dim=1)
        updates[~finite] = 0
    rejected = int((~finite).sum())

    def block(rows: Tensor, norms: Tensor, shaped: Tensor) -> Block:
        places, none = np.arange(len(rows)), torch.zeros(len(rows))
        return Block(places, rows, norms, shaped, none, rejected)

    if pipeline.ballot is not None:
        norms = torch.linalg.vector_norm(updates, dim=1)
        votes = pipeline.ballot(senders.weights + updates, layout, pipeline.granularity)
        return block(votes, norms, norms)
    if pipeline.sparsity and gradient is not None:
        sparsify(updates, gradient, layout, pipeline.sparsity)
    if pipeline.clip is not None:
        own_norms = clip_rows(updates, pipeline.clip, in_place=True).norms
    else:
        own_norms = row_norms(updates, order)
    norms = torch.from_numpy(own_norms).float()
    if pipeline.weight_cap is not None:
        updates *= torch.from_numpy(pipeline.weights(senders.sizes))[:, None]
    if pipeline.granularity is None or pipeline.clip is None:
        shaped = torch.linalg.vector_norm(updates, ord=order, dim=1)
        return block(updates, norms, shaped)
    rows = _on_grid(updates, pipeline, pipeline.clip, pipeline.granularity, senders)
    shaped = torch.linalg.vector_norm(rows.float(), ord=order, dim=1) * pipeline.granularity
    return block(rows, norms, shaped)


def _on_grid(
    updates: Tensor,
    pipeline: UpdatePipeline,
    clip: Clip,
    granularity: float,
    senders: TrainedClients,
) -> Tensor:
    """Clipped updates as integers `[clients, width]`."""
    if pipeline.rotation is not None:
        updates = pipeline.rotation.forward(updates, senders.round_number)
    if pipeline.rounding_beta is None:
        return snap_rows(updates, granularity, clip)
    width, beta = updates.shape[1], pipeline.rounding_beta
    # Only the way to the grid matters here; the noise comes later.
    target = DiscreteGaussianSum(clip.norm, granularity, granularity, 1, width, beta)
    rows = []
    for place, client in enumerate(senders.clients):
        stream = senders.randomness.stream("rounding", senders.round_number, int(client))
        rows.append(snap_conditional(updates[place : place + 1], target, stream))
    return torch.cat(rows) if rows else updates.long()


def sparsify(updates: Tensor, gradient: Tensor, layout: Layout, sparsity: float) -> None:
    """LUS (Cheng, eq. 11-13): in each tensor keep the entries with the largest
    |gradient x update| and set the share `sparsity` of the others to zero, in place.

    Ties may keep more. The mask depends on data, so it is applied before the clip and never sent.
    """
    for slot in layout:
        part = updates[:, slot.start : slot.stop]
        dropped = math.floor(sparsity * part.shape[1])
        if dropped == 0:
            continue
        saliency = (gradient[:, slot.start : slot.stop] * part).abs()
        threshold = saliency.kthvalue(dropped + 1, dim=1).values
        part[saliency < threshold[:, None]] = 0
