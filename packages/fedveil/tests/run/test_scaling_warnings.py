"""One record must not decide whether a protected run says anything.

NumPy warns if a finite number overflows under the public scaling. Such a warning on stderr, or the
stop where warnings are errors, would tell that the record is there.
"""

import warnings

import numpy as np
import pytest
from torch import nn

import fedveil as fv
from fedveil.data.federation import Federation, Scaling
from fedveil.methods.moments import moments


def said(last: float, unit: str, **how: object) -> tuple[list[str], bool]:
    """Return the warnings of a protected run with this record, and whether it is certified."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(60, 3)).astype(np.float32)
    targets = (inputs[:, 0] > 0).astype(np.int64)
    inputs[7] = last
    scaling = Scaling(np.zeros(3, np.float32), np.full(3, 10.0, np.float32))
    public = inputs[:6] * 0 + 1, targets[:6]
    data = Federation.from_arrays(
        inputs,
        targets,
        np.repeat(np.arange(6), 10),
        persons=np.arange(60) // 2 if unit == "person" else None,
        scaling=scaling,
        test=public,
        classes=2,
    )
    plan = fv.plan(
        moments(unit=fv.Unit(unit), **how), data, nn.Linear(3, 2), budget=fv.Budget(4.0, 1e-5)
    )
    assert plan.protected
    assert plan.guarantee is not None
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run = fv.Run(plan)
        run.finish()
        run.close()
    return [str(one.message) for one in found], plan.guarantee.certified


@pytest.mark.parametrize("unit", ["record", "person", "client"])
def test_no_record_decides_whether_a_protected_run_warns(unit: str) -> None:
    usual, certified = said(0.5, unit)
    large, _ = said(3e38, unit)  # finite, so usable; ten times as much is not
    assert certified
    assert usual == large
