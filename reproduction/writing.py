"""results/NAME.json and results/NAME.md."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.cli import console
from fedveil.report import compared
from reproduction.charts import charts_of
from reproduction.experiment import Experiment, Scale
from reproduction.ridges import ridges_of
from reproduction.summary import Row

_NUMBERS = re.compile(r"\[\n((?:\s*(?:[-+\d.e]+|null),?\n)+)\s*\]")  # a list of nothing but numbers


def document(
    experiment: Experiment, scale: Scale, rows: Sequence[Row], missing: int
) -> dict[str, Any]:
    """Everything there is to know about an experiment that was run, as plain values."""
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
        "findings": list(experiment.findings(rows)),
        "rows": [_row(experiment, row) for row in rows],
        "charts": charts_of(experiment, rows),
        "ridges": ridges_of(experiment, rows),
    }


def _row(experiment: Experiment, row: Row) -> dict[str, Any]:
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
        "proof": cost["proof"],
        "engine": row.outcomes[0]["engine"],
        "seconds_a_run": round(sum(o["seconds"] for o in row.outcomes) / len(row.outcomes), 2),
        "recipe": dict(row.case.values),
        "data": {"source": row.case.data.source, **dict(row.case.data.settings)},
        "curves": {
            figure: [[number, s.mean, s.deviation] for number, s in row.curve(figure) if s.runs]
            for figure in sorted({key for o in row.outcomes for p in o["curve"] for key in p})
            if figure != "round" and row.case.every
        },
    }


def html(described: Mapping[str, Any]) -> str:
    """The experiment as a page with charts to read values from and a table that sorts."""
    labels = list(dict.fromkeys(name for row in described["rows"] for name in row["labels"]))
    unit = described["metric"]["unit"]
    columns = [*labels, "paper", f"ours ({unit})" if unit else "ours", "seeds"]
    columns += ["ε claimed", "ε certified", "δ", "noise multiplier"]
    rows = []
    for row in described["rows"]:
        ours, cost = row["ours"], [row[f"epsilon_{kind}"] for kind in ("claimed", "certified")]
        spread = [ours["mean"], ours["deviation"] if ours["seeds"] > 1 else None]
        cells = [*(row["labels"].get(name) for name in labels), row["paper"], spread]
        rows.append([*cells, ours["seeds"], *cost, row["delta"], row["noise_multiplier"]])
    missing = described["runs_missing"]
    said = {
        "What comes out": described["findings"],
        "The paper's setting": described["setting"],
        "What differs here": [
            f"{d['what']}: {d['paper']} in the paper; {d['here']} here"
            for d in described["differences"]
        ],
        "How to read it": [
            *([f"Missing runs: {missing}."] if missing else []),
            f"Scale {described['scale']}; again with: fedveil reproduce {described['experiment']} "
            f"--scale {described['scale']}",
            "Claimed: the paper's epsilon for this noise. Certified: what is proved for it at the "
            "same delta. Runs are simulated with a seed: it is what the same plan would certify.",
        ],
    }
    title = f"{described['paper']}, {described['title']}"
    document = compared.document_of(title, said, described["charts"], columns, rows)
    return compared.comparison_page(console.plain(document))


def page(experiment: Experiment, scale: Scale, rows: Sequence[Row], missing: int) -> str:
    """The experiment for people to read."""
    lines = [f"# {experiment.paper}, {experiment.title}", ""]
    if missing:
        lines += [f"**Missing runs: {missing}**; the command below goes on.", ""]
    seeds = max((len(row.outcomes) for row in rows), default=0)
    lines += [
        f"Scale {scale}, {seeds} seeds. Again with "
        f"`fedveil reproduce {experiment.name} --scale {scale} --seeds {seeds}`.",
        "",
        "The paper's setting:",
        "",
        *(f"- {line}" for line in experiment.setting),
        "",
    ]
    kept = [d for d in experiment.differences if d.only in (None, scale)]
    if kept:
        lines += ["| what differs | paper | here |", "|---|---|---|"]
        lines += [f"| {d.what} | {d.paper} | {d.here} |" for d in kept]
        lines.append("")
    found = experiment.findings(rows)
    if found:
        lines += ["What comes out:", "", *(f"- {line}" for line in found), ""]
    lines += [f"![{experiment.title}]({experiment.name}.png)", "", *table(experiment, rows), ""]
    if experiment.reading:
        lines += [experiment.reading, ""]
    lines += [
        "± is the standard deviation of single runs. Claimed: the paper's epsilon for this noise. "
        "Certified: what is proved for it at the same delta; runs are simulated with a seed, so "
        "this is what the same plan would certify.",
        "",
    ]
    return "\n".join(lines)


def table(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """A Markdown table, one line a case."""
    names = list(dict.fromkeys(name for row in rows for name, _ in row.case.labels))
    paper = any(row.case.published is not None for row in rows)
    unit = f" ({experiment.unit})" if experiment.unit else ""
    head = [*names, *(["paper"] if paper else []), f"ours{unit}", "seeds"]
    head += ["ε claimed", "ε certified", "δ", "noise multiplier"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [_cell(row.case.get(name)) for name in names]
        if paper:
            cells.append(_cell(row.case.published))
        cells += [str(row.spread(experiment.metric)), str(len(row.outcomes))]
        cost = row.cost
        cells += [_cell(cost[key]) for key in ("claimed", "certified", "delta")]
        cells.append(_cell(cost["noise_multiplier"]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(directory: Path, name: str, contents: dict[str, str | bytes]) -> list[Path]:
    """Write NAME.suffix for each suffix, each file whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, content in contents.items():
        path = directory / f"{name}.{suffix}"
        partial = path.with_name(f".{path.name}.partial")
        data = content.encode() if isinstance(content, str) else content
        partial.write_bytes(data)
        os.replace(partial, path)
        written.append(path)
    return written


def as_json(values: dict[str, Any]) -> str:
    """JSON for people too: lists of numbers stand on one line."""
    text = json.dumps(values, indent=1, ensure_ascii=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"
