"""Masks against another AES, at every boundary of a block."""

from __future__ import annotations

import os

import numpy as np
import pytest
from Crypto.Cipher import AES
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy.secure_sums import masks
from fedveil.privacy.secure_sums.masks import apply_masks, word_type


def keystream(key: bytes, words: int, bits: int) -> np.ndarray:
    """pycryptodome's AES in counter mode from two, read as little-endian words."""
    cipher = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=2)
    return np.frombuffer(cipher.encrypt(bytes(words * bits // 8)), word_type(bits))


@settings(max_examples=40, deadline=None)
@given(
    bits=st.sampled_from([32, 64]),
    dimension=st.sampled_from([1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 47, 48, 200]),
    plus=st.integers(0, 4),
    minus=st.integers(0, 4),
)
def test_masks_are_keystreams_added_and_subtracted_modulo_the_word(bits, dimension, plus, minus):
    added = [os.urandom(16) for _ in range(plus)]
    subtracted = [os.urandom(16) for _ in range(minus)]
    start = np.frombuffer(os.urandom(dimension * bits // 8), word_type(bits))
    expected = start.astype(object)
    for key in added:
        expected = expected + keystream(key, dimension, bits).astype(object)
    for key in subtracted:
        expected = expected - keystream(key, dimension, bits).astype(object)
    total = start.copy()
    block, ciphers = masks._BLOCK_BYTES, masks._OPEN_CIPHERS
    try:
        masks._BLOCK_BYTES, masks._OPEN_CIPHERS = 128, 3  # so that every case crosses blocks
        apply_masks(total, added, subtracted)
    finally:
        masks._BLOCK_BYTES, masks._OPEN_CIPHERS = block, ciphers
    assert [int(v) % 2**bits for v in expected] == total.tolist()


@pytest.mark.parametrize("bits", [32, 64])
def test_large_vectors_cross_the_real_block_size(bits):
    dimension = 3 * masks._BLOCK_BYTES // (bits // 8) + 5
    key = os.urandom(32)
    total = np.zeros(dimension, word_type(bits))
    apply_masks(total, [key], [])
    assert np.array_equal(total, keystream(key, dimension, bits))
    apply_masks(total, [], [key])
    assert not total.any()
