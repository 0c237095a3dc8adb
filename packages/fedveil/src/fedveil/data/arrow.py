"""pyarrow, imported when a table is first read.

It takes 80 MB where pandas is installed, which it then imports as well. Whoever has its rows
already, such as a site of a federation, does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.core.loading import Deferred

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv
else:
    pa, pc = Deferred("pyarrow"), Deferred("pyarrow.compute")
    csv = Deferred("pyarrow.csv")

__all__ = ["csv", "pa", "pc"]
