"""The attacks on a run that `fedveil attack RUN` left in its directory, as a report shows them.

Of simulated runs only: nothing that follows from the records of a protected run is shown. The
picture of reconstructions shows records, so it is taken only where these are published ones.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.data.sources import SOURCES
from fedveil.privacy.guarantee import Guarantee

FOLDER, FIGURES, PICTURE = "attack", "attack.json", "reconstructions.png"


def gallery(
    path: Path, recipe: Mapping[str, Any], guarantee: Guarantee | None
) -> dict[str, Any] | None:
    """Return what attacks found; None where nothing was tried or may be shown."""
    file = path / FOLDER / FIGURES
    if recipe.get("seed") is None or not file.exists():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        same = found["epsilon"] is None
        if guarantee is not None:
            same = math.isclose(found["epsilon"], guarantee.epsilon, rel_tol=1e-6)
        views = [_view(found, view) for view in _views(found)]
        members = _membership(found["membership"]) if found["membership"] else None
        not_tried = [str(one) for one in found["not_tried"]]
        document = {"views": views, "membership": members, "not_tried": not_tried}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{file}: damaged ({error!r}); attack the run again") from None
    if not same:
        raise ConfigError(f"{file}: attacks on another guarantee; attack this run again")
    picture, image = path / FOLDER / PICTURE, None
    if found["reconstruction"] and _published(recipe["data"]) and picture.exists():
        image = base64.b64encode(picture.read_bytes()).decode()
    return document | {"picture": image}


def _views(found: Mapping[str, Any]) -> list[str]:
    parts = (found["reconstruction"] or {"views": []})["views"], found["labels"], found["property"]
    return list(dict.fromkeys(str(one["view"]) for part in parts for one in part))


def _view(found: Mapping[str, Any], view: str) -> dict[str, Any]:
    """Return how often each attack on one view was right: [right, victims, blind guess]."""
    made = (found["reconstruction"] or {"views": []})["views"]
    named: dict[str, Any] = {"view": view}
    for name, part in (("label", found["labels"]), ("property", found["property"])):
        for one in part:
            if one["view"] == view:
                named[name] = [*_counted(one["right"], one["victims"]), float(one["by_chance"])]
    for one in made:
        if one["view"] == view:
            named["correlation"] = round(float(one["correlation"]), 3)
            named["found"] = _counted(one["found"], one["victims"])
    return named


def _counted(right: Any, of: Any) -> list[int]:
    """So many of so many."""
    if int(of) < 1:
        raise ValueError(f"{of} victims")
    return [int(right), int(of)]


def _membership(found: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {name: str(found[name]) for name in ("unit", "without")}
    named |= {name: int(found[name]) for name in ("runs", "trials")}
    named["accuracy"] = _number(found["accuracy"])
    points = [
        {"attack": str(curve["attack"]), "auc": _number(curve["auc"])}
        | {name: _number(point[name]) for name in ("false_rate", "true_rate", "allowed")}
        for curve in found["curves"]
        for point in curve["points"]
    ]
    return named | {"points": points}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _published(data: Mapping[str, Any]) -> bool:
    """Return whether the records are those of a public data set that comes with this package."""
    name = str(data.get("source"))
    return "file" not in data and name in SOURCES and SOURCES[name].published
