"""A client's matrix product has the same bits alone and in any stack."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedveil.training.engines.isolated_arithmetic import aligned, aligned_stack, products

CLIENTS = 24
# m, k, n: tails and multiples of vector lengths.
MATRICES = [
    (1, 1, 1),
    (7, 16, 3),
    (10, 64, 10),
    (13, 13, 13),
    (3, 7, 40),
    (64, 16, 5),
    (12, 80, 12),
]
VECTORS = [(1, 48, 10), (10, 48, 1), (11, 11, 1), (63, 63, 1)]
LARGE = [(1, 200, 200), (20, 300, 20), (50, 784, 10)]  # each client by itself


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [*MATRICES, *VECTORS, *LARGE], ids=str)
def test_a_product_is_its_own(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = shape
    draw = torch.Generator().manual_seed(m + k + n)
    left, right = (
        aligned(torch.randn(CLIENTS, *size, generator=draw, dtype=dtype))
        for size in ((m, k), (k, n))
    )
    whole = products(left, right)
    wanted = torch.bmm(left.double(), right.double())
    slack = (k + 2) * torch.finfo(dtype).eps * float(left.abs().amax() * right.abs().amax() * k)
    torch.testing.assert_close(whole.double(), wanted, rtol=0, atol=slack)
    for seed in range(12):
        who = torch.from_numpy(np.random.default_rng(seed).permutation(CLIENTS)[: 1 + 2 * seed])
        ours, theirs = left[who], right[who]  # not aligned: copied
        assert torch.equal(products(ours, theirs), whole[who])
        if len(who) > 1:
            ours[0], theirs[-1] = float("nan"), float("inf")
            assert torch.equal(products(ours, theirs)[1:-1], whole[who[1:-1]])
    turned = aligned(left.mT.contiguous()).mT  # the same numbers, columns first
    alone = [products(turned[one : one + 1], right[one : one + 1]) for one in range(CLIENTS)]
    assert torch.equal(products(turned, right), torch.cat(alone))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 7), (17, 40), (33, 36), (11, 11)], ids=str)
def test_a_matrix_times_itself_turned_is_its_own(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """A client that had memory of its own was once copied for being turned, and rounded otherwise
    than beside another client of its size."""
    draw = torch.Generator().manual_seed(sum(shape))
    given = torch.randn(CLIENTS, *shape, generator=draw, dtype=dtype)
    whole = aligned(given)
    for one in range(CLIENTS):
        own = aligned(given[one : one + 1].clone())
        assert torch.equal(products(own, own.mT)[0], products(whole, whole.mT)[one])
        assert torch.equal(products(own.mT, own)[0], products(whole.mT, whole)[one])


def test_every_part_of_a_stack_is_aligned_alike() -> None:
    for shape in ((3,), (5, 7), (16, 16), (1, 1)):
        for dtype in (torch.float32, torch.float64):
            parts = aligned_stack(5, *shape, dtype=dtype)
            assert {part.data_ptr() % 64 for part in parts} == {0}
            assert parts.shape == (5, *shape)
            assert not parts.any()
