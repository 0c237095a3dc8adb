"""What comes out of an experiment, in sentences with numbers.

An experiment names the labels that it compares and a base that all others are held against; rows
that are alike in all other labels make one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fedveil_lab.reproduction.case import Label
from fedveil_lab.reproduction.experiment import Experiment
from fedveil_lab.reproduction.runs import Row, paired


def findings(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """Return the sentences about finished rows: beside the paper, and compared.

    Args:
        experiment: Says what is compared: `compare`, `base`, `best_of`.
        rows: Cases with at least one finished run.
    """
    metric, found = experiment.metric, []
    gaps = [r.mean(metric) - r.case.published for r in rows if r.case.published is not None]
    if gaps:
        found.append(
            f"ours less the paper's, {len(gaps)} cells: mean {sum(gaps) / len(gaps):+.2f}, "
            f"largest {max(gaps, key=abs):+.2f}"
        )
    if experiment.best_of:
        found += _compared(experiment, rows, experiment.best_of)
    if experiment.compare:
        found += _compared(experiment, rows)
    return found


def _compared(experiment: Experiment, rows: Sequence[Row], best_of: str = "") -> Iterator[str]:
    """Yield one sentence for each group of rows that differ in what is compared alone.

    With `best_of` each takes part at its best value of that label; one that has not tried all
    values is left out, for its best may be another.
    """
    names, metric, base = experiment.compare, experiment.metric, experiment.base
    best = max if metric == "accuracy" else min
    groups: dict[str, list[Row]] = {}
    for row in rows:
        alike = (_told(k, v) for k, v in row.case.labels if k not in (*names, best_of))
        groups.setdefault(", ".join(alike), []).append(row)
    for where, group in groups.items():
        own: dict[str, list[Row]] = {}
        for row in group:
            own.setdefault(_name(row, names), []).append(row)
        tried = max(map(len, own.values()))
        chosen = {
            name: best(some, key=lambda row: row.mean(metric))
            for name, some in own.items()
            if len(some) == tried
        }
        if len(chosen) < 2 or (best_of and tried < 2):
            continue
        against = next((row for row in chosen.values() if row[names[0]] == base), None)
        if against is not None:
            listed = ", ".join(
                f"{name}{f' at {_told(best_of, row[best_of])}' if best_of else ''} "
                f"{row.spread(metric)}{_gain(row, against, metric)}"
                for name, row in chosen.items()
            )
            yield f"{where}: {listed}"
        elif base is None:
            ranked = sorted(chosen, key=lambda name: chosen[name].mean(metric), reverse=best is max)
            first, last = (f"{n} with {chosen[n].spread(metric)}" for n in (ranked[0], ranked[-1]))
            yield f"{where}: best {first}, worst {last}"


def _gain(row: Row, base: Row, metric: str) -> str:
    """Return the mean paired difference to the base and its standard error."""
    gain = paired(row, base, metric)
    if row is base or not gain.runs:
        return ""
    return f" ({gain.mean:+.2f}{'' if math.isnan(gain.error) else f' ± {gain.error:.2f}'})"


def _name(row: Row, labels: Sequence[str]) -> str:
    """Return what a row is called among those that it is compared with."""
    values = [(label, row.case.get(label)) for label in labels]
    told = (v if isinstance(v, str) else _told(k, v) for k, v in values if v or k == labels[0])
    return " ".join(told)


def _told(label: str, value: Label | None) -> str:
    return f"{label} {value:g}" if isinstance(value, float) else f"{label} {value}"
