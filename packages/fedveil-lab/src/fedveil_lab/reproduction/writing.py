"""results/NAME.json, and results/NAME.md to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.core.files import write_atomically
from fedveil.report.spread import Spread
from fedveil_lab.reproduction.case import Case, at_hand
from fedveil_lab.reproduction.charts import charts_of
from fedveil_lab.reproduction.experiment import Experiment, Scale
from fedveil_lab.reproduction.findings import findings
from fedveil_lab.reproduction.run_case import probe_of, same_probe
from fedveil_lab.reproduction.runs import Row

_LINES = ",\n"


def document(
    experiment: Experiment, scale: Scale, rows: Sequence[Row], missing: int
) -> dict[str, Any]:
    """Return everything there is to know about an experiment that was run, as plain values."""
    recipes = [dict(row.case.values) for row in rows]
    common = {
        key: value
        for key, value in recipes[0].items()
        if all(key in one and one[key] == value for one in recipes)
    }
    return {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "title": experiment.title,
        "scale": str(scale),
        "runs_missing": missing,
        "setting": list(experiment.setting),
        "differences": [
            {"what": d.what, "paper": d.paper, "here": d.here}
            for d in experiment.differences
            if d.only in (None, scale)
        ],
        "metric": {"name": experiment.metric, "unit": experiment.unit},
        "reading": experiment.reading,
        "findings": findings(experiment, rows),
        "recipe": common,  # what all rows share; each has the rest
        "rows": [_row(experiment, row, common) for row in rows],
        "charts": charts_of(experiment, rows),
    }


def _row(experiment: Experiment, row: Row, common: Mapping[str, Any]) -> dict[str, Any]:
    ours = row.spread(experiment.metric)
    cost = row.cost
    return {
        "labels": dict(row.case.labels),
        "paper": row.case.published,
        "ours": {
            "mean": ours.mean if ours.runs else None,
            "deviation": ours.deviation if ours.runs else None,
            "seeds": len(row.outcomes),
            "diverged": ours.lost,
        },
        "epsilon_claimed": cost["claimed"],
        "epsilon_certified": cost["certified"],
        "delta": cost["delta"],
        "noise_multiplier": cost["noise_multiplier"],
        "digest": row.case.digest(),
        "probe": row.outcomes[0].get("probe"),
        "recipe": {key: value for key, value in row.case.values if key not in common},
    }


def stale_rows(experiment: Experiment, written: Mapping[str, Any]) -> list[str]:
    """Return the labels of written rows that today's settings, data or code would give otherwise.

    Rows whose data are not on this machine cannot be judged and are left out.
    """
    cases = {str(dict(case.labels)): case for case in experiment.cases(Scale(written["scale"]))}
    return [
        ", ".join(f"{name} {value}" for name, value in row["labels"].items())
        for row in written["rows"]
        if not _is_current(cases.get(str(row["labels"])), row)
    ]


def _is_current(case: Case | None, row: Mapping[str, Any]) -> bool:
    if case is None:
        return False
    if not at_hand(case.data):
        return True
    probe = None if row.get("probe") is None else probe_of(case)  # a page's own runs have none
    return row["digest"] == case.digest() and same_probe(row.get("probe"), probe)


def page(described: Mapping[str, Any]) -> str:
    """Return the experiment as Markdown."""
    missing, scale, name = (described[key] for key in ("runs_missing", "scale", "experiment"))
    seeds = max((row["ours"]["seeds"] for row in described["rows"]), default=0)
    lines = [f"# {described['paper']}, {described['title']}", ""]
    if missing:
        lines += [f"**Missing runs: {missing}**; the command below goes on.", ""]
    older = sum(row["digest"] is None for row in described["rows"])
    if older:
        lines += [f"**Of older code: {older} rows**; today's may give other numbers.", ""]
    lines += [
        f"Scale {scale}, {seeds} seeds. Again with "
        f"`fedveil reproduce {name} --scale {scale} --seeds {seeds}`.",
        "",
        *_listed("The paper's setting:", described["setting"]),
    ]
    if described["differences"]:
        lines += ["| what differs | paper | here |", "|---|---|---|"]
        lines += [f"| {d['what']} | {d['paper']} | {d['here']} |" for d in described["differences"]]
        lines.append("")
    columns, rows = _table(described)
    lines += [
        *_listed("What comes out:", described["findings"]),
        f"![{described['title']}]({name}.svg)",
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
        "",
        *([described["reading"], ""] if described.get("reading") else []),
        "± is the standard deviation of single runs. Claimed: the paper's epsilon for this noise. "
        "Certified: what is proved for it at the same delta; runs are simulated with a seed, so "
        "this is what the same plan would certify.",
        "",
    ]
    return "\n".join(lines)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return [title, "", *(f"- {line}" for line in lines), ""] if lines else []


def _table(described: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and one row a case; ours is a mean and a deviation."""
    rows, unit = described["rows"], described["metric"]["unit"]
    labels = list(dict.fromkeys(name for row in rows for name in row["labels"]))
    paper = ["paper"] if any(row["paper"] is not None for row in rows) else []
    keys = ["epsilon_claimed", "epsilon_certified", "delta", "noise_multiplier"]
    columns = [*labels, *paper, f"ours ({unit})" if unit else "ours", "seeds"]
    columns += ["ε claimed", "ε certified", "δ", "noise multiplier"]
    cells = []
    for row in rows:
        ours = row["ours"]
        own = [row["labels"].get(name) for name in labels] + [row[key] for key in paper]
        spread = [ours["mean"], ours["deviation"] if ours["seeds"] > 1 else None]
        cells.append([*own, spread, ours["seeds"], *(row[key] for key in keys)])
    return columns, cells


def _cell(value: Any) -> str:
    if isinstance(value, list):
        mean, deviation = value
        return str(
            Spread(mean, deviation or 0.0, 0 if mean is None else 1 + (deviation is not None))
        )
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(directory: Path, name: str, contents: Mapping[str, bytes]) -> list[Path]:
    """Write NAME.suffix for each suffix, each file whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, content in contents.items():
        written.append(directory / f"{name}.{suffix}")
        write_atomically(written[-1], content)
    return written


def as_json(values: Mapping[str, Any]) -> str:
    """Return JSON with one line for each entry, and for each element of an entry that is a list."""
    entries = []
    for key, value in values.items():
        lines = [json.dumps(one, ensure_ascii=False) for one in value] if _is_list(value) else None
        text = json.dumps(value, ensure_ascii=False) if lines is None else _LINES.join(lines)
        entries.append(f"{json.dumps(key)}: " + (text if lines is None else f"[\n{text}\n]"))
    return "{\n" + _LINES.join(entries) + "\n}\n"


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)
