"""The garbage collector is left as it was found."""

from __future__ import annotations

import gc

from fedveil.core.loading import uncollected


def test_what_is_made_inside_counts_as_old() -> None:
    gc.unfreeze()
    with uncollected():
        made = [[number] for number in range(5000)]
    assert gc.get_freeze_count() == 0
    old = {id(one) for one in gc.get_objects(generation=2)}
    assert all(id(one) in old for one in made)


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
