"""What becomes of each column of a table, and what a trained model does with it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.data.encoder import feature_names
from fedveil.data.examples import Task
from fedveil.data.rows import column_names
from fedveil.data.schema import Column, Kind
from fedveil.run.bundle import ModelBundle
from fedveil.training.models.losses import class_scores

if TYPE_CHECKING:
    from fedveil.data.federation import Federation
    from fedveil.methods.recipes.sections import DataSection

_LINEAR = ("auto", "linear", "logistic")
_MOST_CHARTS = 12
_YEAR = 365.25  # days


def columns_of(
    data: DataSection, federation: Federation, *, scales: bool = True
) -> list[dict[str, Any]]:
    """Return what becomes of every column of a table.

    Args:
        data: Where the table is, and what its columns are for.
        federation: The data as they are trained on.
        scales: Whether to say how values become inputs: the figures may come from the rows.

    Returns:
        Each column's name, kind, number of inputs, and use: its scale, or why it is no input.
    """
    encoder = federation.encoder
    if encoder is None or data.file is None:
        return []
    roles = {data.client_column: "names the client", data.person_column: "names the person"}
    roles |= dict.fromkeys(encoder.labels, "the label")
    columns = []
    for name in column_names(Path(data.file)):
        column = encoder.columns.get(name)
        if column is None:
            use = roles.get(name) or f"not used: {federation.left_out.get(name, 'left out')}"
            columns.append({"column": name, "kind": "", "inputs": 0, "use": use})
            continue
        use = _scale(column) if scales else "input"
        inputs = len(feature_names(name, column))
        columns.append({"column": name, "kind": str(column.kind), "inputs": inputs, "use": use})
    return columns


def _scale(column: Column) -> str:
    date = column.kind is Kind.DATE
    if column.cuts:
        ends = column.cuts[0], column.cuts[-1]
        low, high = (_day(end) if date else f"{end:.4g}" for end in ends)
        return f"{len(column.cuts) + 1} bins from {low} to {high}"
    if date or column.kind is Kind.NUMBER:
        centre = _day(column.centre) if date else f"{column.centre:.4g}"
        return f"centre {centre}, width {column.width:.4g}{' days' if date else ''}"
    if column.kind is Kind.TEXT:
        return f"vectors of {column.encoder}"
    if column.kind is Kind.BOOLEAN:
        return "true or false"
    return f"hashed to {column.buckets}" if column.buckets else f"{len(column.categories)} values"


def _day(days: float) -> str:
    return str(np.datetime64("1970-01-01") + round(days))


@torch.inference_mode()
def effects_of(bundle: ModelBundle, module: nn.Module) -> list[dict[str, Any]]:
    """Return charts of what each column does to the answer of a linear model on a table.

    The other columns are held in their middle. What matters is the shape: each curve's mean is
    zero. They follow from the released model alone.

    Args:
        bundle: How rows become inputs.
        module: The trained model.

    Returns:
        Charts as `report.charts` draws them, those with the widest range first; none for a model
        that is not linear, whose columns have no effects of their own.
    """
    encoder, named = bundle.encoder, (bundle.architecture or {}).get("name")
    if encoder is None or bundle.featurizer is not None or named not in _LINEAR:
        return []
    middle, start = torch.zeros(len(encoder.features)), 0
    for one in encoder.one_hot:
        middle[one.start + one.ordered // 2] = 1.0
    charts = []
    for name, column in encoder.columns.items():
        width = len(feature_names(name, column))
        if column.kind is not Kind.TEXT and column.buckets is None and width:
            values, axis = _values(name, column)
            inputs = middle.repeat(len(values), 1)
            inputs[:, start : start + width] = 0.0
            inputs[:, start : start + values.shape[1]] = values
            curves = _curves(bundle, module(inputs))
            charts.append(_chart(name, column, curves, axis))
        start += width
    charts.sort(key=lambda chart: -float(np.ptp(_heights(chart))))
    ends = [end for chart in charts for end in (min(_heights(chart)), max(_heights(chart)))]
    return [chart | {"y_range": [min(ends), max(ends)]} for chart in charts[:_MOST_CHARTS]]


def _values(name: str, column: Column) -> tuple[Tensor, Mapping[str, Any]]:
    """Return inputs at which a column's effect is looked at, and what its axis says."""
    if column.kind is Kind.CATEGORY:
        return torch.eye(len(column.categories)), {"x": name, "x_names": list(column.categories)}
    if column.kind is Kind.BOOLEAN:
        return torch.tensor([[0.0], [1.0]]), {"x": name, "x_names": ["false", "true"]}
    axis = {"x": f"{name} (year)" if column.kind is Kind.DATE else name, "from_least": True}
    return (torch.eye(len(column.cuts) + 1) if column.cuts else torch.tensor([[-2.0], [2.0]])), axis


def _curves(bundle: ModelBundle, outputs: Tensor) -> dict[str, np.ndarray[Any, Any]]:
    """Return the answers by name: of two classes the log odds of the second, else each class's."""
    if bundle.task is Task.REGRESSION:
        width = 1.0 if bundle.encoder is None else bundle.encoder.target.width
        curves = {"effect on the label": outputs.flatten().double().numpy() * width}
    else:
        several = bundle.task is Task.MULTI_LABEL
        scores = (outputs if several else class_scores(outputs, 1)).double()
        if not several:
            scores = scores - scores.mean(1, keepdim=True)
        names = bundle.class_names or tuple(map(str, range(scores.shape[1])))
        curves = {f"log odds of {name}": s.numpy() for name, s in zip(names, scores.T, strict=True)}
        if len(names) == 2 and not several:
            second = f"log odds of {names[1]}"
            curves = {second: 2 * curves[second]}
    return {name: curve - curve.mean() for name, curve in curves.items()}


def _chart(
    name: str, column: Column, curves: Mapping[str, Any], axis: Mapping[str, Any]
) -> dict[str, Any]:
    count = len(next(iter(curves.values())))
    if "x_names" in axis:
        places = [[float(number)] for number in range(count)]
    elif column.cuts:  # each bin is a step
        gap = (column.cuts[-1] - column.cuts[0]) / len(column.cuts) or 1.0
        edges = [column.cuts[0] - gap, *column.cuts, column.cuts[-1] + gap]
        places = [[low, high] for low, high in pairwise(edges)]
    else:
        places = [[column.centre + side * column.width] for side in (-2, 2)]
    if column.kind is Kind.DATE:
        places = [[1970 + day / _YEAR for day in part] for part in places]
    series = [
        {
            "name": said,
            "points": [
                [float(f"{x:.6g}"), float(f"{y:.4g}")]
                for part, y in zip(places, curve, strict=True)
                for x in part
            ],
        }
        for said, curve in curves.items()
    ]
    (y, *more) = curves
    return {"title": name, "y": "log odds" if more else y, **axis, "zoom": True, "series": series}


def _heights(chart: Mapping[str, Any]) -> list[float]:
    return [y for series in chart["series"] for _, y in series["points"]]
