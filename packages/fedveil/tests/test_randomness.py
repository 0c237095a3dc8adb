"""Streams are keyed by what they are for, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedveil.core.randomness import Randomness, Stream
from fedveil.core.units import Entropy


def test_a_stream_is_the_keystream_of_aes_256_in_counter_mode() -> None:
    """Known answer: NIST SP 800-38A F.5.5 with a zero counter cannot be set, so encrypt zeros."""
    key = bytes(range(32))
    expected = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(64))
    assert Stream(key).words(8).tobytes() == expected


def test_a_stream_goes_on_where_it_stopped() -> None:
    parts = Stream(bytes(32))
    whole = Stream(bytes(32)).words(10)
    assert np.array_equal(np.concatenate([parts.words(3), parts.words(7)]), whole)


def test_a_key_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Stream(b"short")


def test_the_same_draw_of_the_same_seed_is_the_same_and_every_other_is_not() -> None:
    base = Randomness(1).stream("noise", 2, 3).words(4)
    assert np.array_equal(base, Randomness(1).stream("noise", 2, 3).words(4))
    others = [
        Randomness(2).stream("noise", 2, 3),
        Randomness(1).stream("cohort", 2, 3),
        Randomness(1).stream("noise", 3, 3),
        Randomness(1).stream("noise", 2, 4),
        Randomness(1).stream("noise", 23, -1),
    ]
    assert all(not np.array_equal(base, other.words(4)) for other in others)


def test_without_a_seed_no_two_streams_agree() -> None:
    system = Randomness(None)
    assert system.entropy is Entropy.SYSTEM
    assert not np.array_equal(system.stream("noise").words(4), system.stream("noise").words(4))


def test_shuffle_words_do_not_depend_on_who_else_is_asked() -> None:
    draw = Randomness(3)
    places = np.arange(6)
    together = draw.shuffle_words(1, np.array([4, 9])[:, None], places)
    alone = draw.shuffle_words(1, np.array([9]), places)
    assert np.array_equal(together[1], alone)
    assert not np.array_equal(together[0], together[1])
    assert not np.array_equal(alone, draw.shuffle_words(2, np.array([9]), places))


def test_shuffles_are_uniform() -> None:
    """Orders of three records, chi-square over the 6 orders of 60,000 clients, each of them
    expected 10,000 times: 5 degrees of freedom, false alarm 1e-6 above 35.9."""
    words = Randomness(7).shuffle_words(0, np.arange(60_000)[:, None], np.arange(3))
    orders = np.argsort(words, axis=1) @ np.array([9, 3, 1])
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == 6
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 35.9
