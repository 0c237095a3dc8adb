"""The garbage collector is left as it was found."""

from __future__ import annotations

import gc

from fedveil.core.loading import uncollected


def test_nothing_is_collected_inside_and_everything_again_afterwards() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_is_made_inside_counts_as_old() -> None:
    gc.unfreeze()
    with uncollected():
        made = [[number] for number in range(5000)]
    assert gc.get_freeze_count() == 0
    old = {id(one) for one in gc.get_objects(generation=2)}
    assert all(id(one) in old for one in made)


def test_objects_that_somebody_else_froze_stay_frozen() -> None:
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        assert frozen > before
        with uncollected():
            pass
        # Frozen objects still die when nobody refers to them; unfreezing would leave none.
        assert gc.get_freeze_count() > frozen // 2
    finally:
        gc.unfreeze()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
