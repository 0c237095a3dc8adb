"""Integers modulo a power of two, against Python's own; masks on them, against another AES."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from Crypto.Cipher import AES
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedveil.core.errors import ConfigError
from fedveil.privacy.noise.modular_grid import bits_for, largest_sum
from fedveil.privacy.secure_sums import masks
from fedveil.privacy.secure_sums.masks import apply_masks, decode, encode, word_type

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(arrays(np.int64, st.integers(0, 20), elements=INT64))
def test_64_bits_come_back_unchanged(vector):
    assert np.array_equal(decode(encode(vector, 64), 64), vector)


@given(st.lists(INT32, min_size=1, max_size=30))
def test_sums_of_words_are_the_centred_integer_sum(values):
    words = np.zeros(1, "<u4")
    for value in values:
        words += encode(np.array([value]), 32)
    total = sum(values)
    assert decode(words, 32)[0] == (total + 2**31) % 2**32 - 2**31


@given(cohort=st.integers(1, 5000), clip=st.floats(0.01, 100), granularity=st.floats(1e-7, 1.0))
def test_without_noise_the_worst_sum_fits_the_words(cohort, clip, granularity):
    largest = largest_sum(cohort, clip, granularity, 0.0, 0.0)
    worst = cohort * (math.ceil(clip / granularity) + 1)
    bits = bits_for(largest)
    assert worst <= largest < 2 ** (bits - 1)
    assert bits == 32 or worst >= 2**31  # never more words than needed


def test_noise_exceeds_its_part_of_the_bound_no_more_often_than_stated():
    # Rounded Gaussians of std 50 stand in for discrete ones; 100 shares, 400 sums of 100 entries.
    noise_bound = largest_sum(100, 0.0, 1.0, 50.0, 0.05, dimension=100) - 100
    rng = np.random.default_rng(3)
    sums = np.rint(rng.normal(0, 50, (400, 100, 100))).sum(axis=1)
    exceeded = (np.abs(sums) > noise_bound).any(axis=1).mean()
    assert exceeded <= 0.05 + 5 * math.sqrt(0.05 / 400)
    # and the bound is no wild overestimate: half of it is exceeded nearly always
    assert (np.abs(sums) > noise_bound / 2).any(axis=1).mean() > 0.5


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(3),
        np.zeros(3, np.float32),
        np.zeros((2, 2), np.int64),
        np.zeros(3, np.int32),
        [1, 2, 3],
    ],
)
def test_only_int64_vectors_enter(vector):
    with pytest.raises(ConfigError, match="vector"):
        encode(vector, 32)


def test_an_entry_beyond_32_bits_is_refused_and_not_wrapped():
    for entry in (2**31, -(2**31) - 1):
        with pytest.raises(ConfigError, match="32 bits"):
            encode(np.array([entry]), 32)
    with pytest.raises(ConfigError, match="bits = 16"):
        encode(np.array([1]), 16)


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
