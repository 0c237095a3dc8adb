"""Who wins in Cheng's tables, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedveil.report.spread import Spread
from reproduction.case import Label
from reproduction.pages.cheng_cases import BASE
from reproduction.ridges import hills_of
from reproduction.summary import Row, paired

_METHODS_OWN = ("method", "lambda", "sparsity")  # labels in which a method may differ from BASE


def winners(rows: Sequence[Row]) -> Sequence[str]:
    """Each method at its own best clip; then all at one clip."""
    return (*at_best_clips(rows), *at_one_clip(rows))


def at_best_clips(rows: Sequence[Row]) -> Iterator[str]:
    """The clip is picked by mean test accuracy, for every method alike."""
    for where, chosen in _groups(rows, without=("method", "clip")):
        clips = {row["clip"] for row in chosen}
        best: dict[Label, Row] = {}
        for method in dict.fromkeys(row["method"] for row in chosen):
            own = [row for row in chosen if row["method"] == method]
            if {row["clip"] for row in own} == clips:  # else its best may not have been tried
                best[method] = max(own, key=lambda row: row.mean("accuracy"))
        if len(clips) < 2 or len(best) < 2:
            continue
        listed = ", ".join(
            f"{method} {row.spread('accuracy')} (S = {row['clip']:g})"
            for method, row in best.items()
        )
        gains = (
            f"{method} {gain_text(paired(row, best[BASE], 'accuracy'))}"
            for method, row in best.items()
            if method != BASE and BASE in best
        )
        yield f"{where}, each at its best clip: {listed}. Minus {BASE}: {', '.join(gains)}"


def at_one_clip(rows: Sequence[Row]) -> Iterator[str]:
    """Every case minus DP-FedAvg with the same seeds, data, noise and clip."""
    for where, chosen in _groups(rows, without=_METHODS_OWN):
        base = next((row for row in chosen if row["method"] == BASE), None)
        if base is None or len(chosen) < 2:
            continue
        gains = (
            f"{_own_name(row)} {gain_text(paired(row, base, 'accuracy'))}"
            for row in chosen
            if row is not base
        )
        norm = base.spread("update_norm").mean
        yield (
            f"{where}: {BASE} {base.spread('accuracy')} (last median norm {norm:.2f}); "
            f"minus it: {', '.join(gains)}"
        )


def norm_findings(rows: Sequence[Row]) -> Sequence[str]:
    """How long updates are before clipping, over all rounds that were looked at."""
    found = []
    for row in rows:
        norms = np.concatenate(list(hills_of([row]).values()))
        low, middle, high = np.quantile(norms, (0.1, 0.5, 0.9))
        above = float((norms > float(row["clip"])).mean())
        found.append(
            f"{row['method']}, S = {row['clip']:g}: norms {low:.2f} to {high:.2f} (10th and 90th "
            f"percentile), median {middle:.2f}, {above:.0%} above the clip; accuracy "
            f"{row.spread('accuracy')}"
        )
    return (*found, *at_one_clip(rows))


def gain_text(gain: Spread) -> str:
    """Mean of the paired differences and its standard error, in points."""
    if not gain.runs:
        return "diverged"
    error = "" if math.isnan(gain.error) else f" ± {gain.error:.2f}"
    return f"{gain.mean:+.2f}{error}"


def _own_name(row: Row) -> str:
    own = (f"{name} {row.case.get(name):g}" for name in _METHODS_OWN[1:] if row.case.get(name))
    return " ".join((str(row["method"]), *own))


def _groups(
    rows: Sequence[Row], without: tuple[str, ...]
) -> Iterator[tuple[str, list[Row]]]:  # fmt: skip
    """Rows alike in all labels but these, with a line that says in what they are alike."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        alike = (f"{name} {_shown(value)}" for name, value in row.case.labels
                 if name not in without and name != "data")  # fmt: skip
        found.setdefault(", ".join((str(row["data"]), *alike)), []).append(row)
    yield from found.items()


def _shown(value: Label) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
