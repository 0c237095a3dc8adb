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
        attack = json.loads(file.read_text(encoding="utf-8"))
        same = attack["epsilon"] is None
        if guarantee is not None:
            same = math.isclose(attack["epsilon"], guarantee.epsilon, rel_tol=1e-6)
        document = {
            "views": _views(attack),
            "membership": _membership(attack["membership"]) if attack["membership"] else None,
            "not_tried": [str(one) for one in attack["not_tried"]],
        }
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{file}: damaged ({error!r}); attack the run again") from None
    if not same:
        raise ConfigError(f"{file}: attacks on another guarantee; attack this run again")
    picture, image = path / FOLDER / PICTURE, None
    if attack["reconstruction"] and _published(recipe["data"]) and picture.exists():
        image = base64.b64encode(picture.read_bytes()).decode()
    return document | {"picture": image}


def _views(attack: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how well records were reconstructed, view by view: [found, victims]."""
    return [
        {
            "view": str(one["view"]),
            "correlation": round(float(one["correlation"]), 3),
            "found": _counted(one["found"], one["victims"]),
        }
        for one in (attack["reconstruction"] or {"views": []})["views"]
    ]


def _counted(right: Any, of: Any) -> list[int]:
    if int(of) < 1:
        raise ValueError(f"{of} victims")
    return [int(right), int(of)]


def _membership(attack: Mapping[str, Any]) -> dict[str, Any]:
    rates = ("false_rate", "true_rate", "allowed")
    points = [
        {"attack": str(curve["attack"]), "auc": _number(curve["auc"])}
        | {name: _number(point[name]) for name in rates}
        for curve in attack["curves"]
        for point in curve["points"]
    ]
    named = {name: str(attack[name]) for name in ("unit", "without")}
    counted = {name: int(attack[name]) for name in ("runs", "trials")}
    return {**named, **counted, "accuracy": _number(attack["accuracy"]), "points": points}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _published(data: Mapping[str, Any]) -> bool:
    """Return whether the records are those of a public data set that comes with this package."""
    name = str(data.get("source"))
    return "file" not in data and name in SOURCES and SOURCES[name].published
