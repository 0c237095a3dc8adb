"""Gram matrices of clients, kept from round to round while they are small beside the data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedveil.data.federation import Federation
from fedveil.training.engines.contract import Cohort

_WORTH = 300_000  # multiplications below which a matrix is computed as fast as it is looked up


class GramCache:
    """XX' of each client, computed when it first comes.

    A matrix is computed from its client's records alone, never together with others, so that it
    has the same bits whenever that happens.
    """

    def __init__(self, federation: Federation, features: int) -> None:
        self._features = features
        ends = np.cumsum(federation.sizes**2)
        self._starts = np.concatenate([[0], ends])
        # Pages of clients that never come are never touched.
        self._kept = torch.from_numpy(np.empty(int(ends[-1]), np.float32))
        self._known = np.zeros(federation.clients, dtype=np.bool_)
        sizes = federation.sizes
        self._alike = bool((sizes == sizes[:1]).all())

    @staticmethod
    def fit(federation: Federation) -> bool:
        """Whether the matrices of all clients take at most a quarter of the data's memory."""
        squares = float(np.square(federation.sizes, dtype=np.float64).sum())
        return 4 * 4 * squares <= federation.train.inputs.nbytes

    def pay(self, sizes: Cohort) -> bool:
        """Whether looking up beats computing for clients of these sizes."""
        return float(sizes.mean()) ** 2 * self._features >= _WORTH

    def of(self, clients: Cohort, sizes: Cohort, inputs: Tensor) -> Tensor:
        """`[clients, most, most]` of `inputs [clients, most, features]`; zero beyond a size."""
        most = inputs.shape[1]
        for place in np.flatnonzero(~self._known[clients]).tolist():
            records = inputs[place, : sizes[place]]
            torch.mm(records, records.t(), out=self._square(clients[place], int(sizes[place])))
        self._known[clients] = True
        if self._alike:
            squares = self._kept.view(-1, most, most)
            return squares.index_select(0, torch.from_numpy(clients))
        if int(sizes.min()) == most:
            rows = self._starts[clients][:, None] + np.arange(most * most)
            found = self._kept.index_select(0, torch.from_numpy(rows.reshape(-1)))
            return found.view(len(clients), most, most)
        grams = inputs.new_zeros(len(clients), most, most)
        for place, (client, size) in enumerate(zip(clients, sizes.tolist(), strict=True)):
            grams[place, :size, :size] = self._square(client, size)
        return grams

    def known(self, client: int, size: int) -> Tensor | None:
        """One client's matrix, if it was kept."""
        return self._square(np.int64(client), size) if self._known[client] else None

    def keep(self, client: int, gram: Tensor) -> None:
        """Keep one client's matrix."""
        self._square(np.int64(client), len(gram)).copy_(gram)
        self._known[client] = True

    def _square(self, client: np.int64, size: int) -> Tensor:
        start = int(self._starts[client])
        return self._kept[start : start + size * size].view(size, size)
