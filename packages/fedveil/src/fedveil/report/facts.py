"""A run as one document: all that `report.html` and `report.json` show.

It is made from the run directory alone, and by naming what is taken: a value that is not named
here cannot get into a report. What is named has been released (metrics of a run, its guarantee) or
is public (its settings, the shape of its model).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fedveil.core.canonical import plain
from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.data.folder import title
from fedveil.privacy.distinguishing import RATES, AttackBound, attack_on
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.rounding import at_most
from fedveil.report.checklist import checklists
from fedveil.report.gallery import gallery
from fedveil.report.scores import ordered, useless
from fedveil.run.directory import (
    LEDGER,
    MODEL,
    PROMISE,
    RECIPE,
    metrics,
    read_result,
    stored_recipe,
)
from fedveil.run.guarantees import Progress, guarantee_of

VERSION = 1
AUDIT = "audit.json"

_SEES = {
    Trust.LOCAL: "Protected from everybody else: clients add the noise before anything leaves "
    "them, so that the server sees noisy updates alone.",
    Trust.DISTRIBUTED: "Protected from the server too: each client adds a share of the noise, and "
    "the server sees the sum of all and no single update.",
    Trust.CENTRAL: "Protected from whoever sees the released models. The aggregator is trusted: it "
    "sees updates without noise, and adds the noise.",
}


def document_of(path: Path) -> dict[str, Any]:
    """Return the document of one run, with the guarantee recomputed from its ledger.

    Raises:
        ConfigError: The directory is none of a run, or its files contradict each other.
    """
    guarantee: Guarantee | None = None
    progress: Progress | None = None
    if (path / RECIPE).exists() and any((path / name).exists() for name in (LEDGER, PROMISE)):
        guarantee, progress = guarantee_of(path)
    recipe, lines, result = stored_recipe(path), metrics(path), read_result(path)
    done = max((line["round"] for line in lines), default=0)
    evaluated = [line for line in lines if line.get("loss") is not None]
    last = evaluated[-1] if evaluated else {}
    attack = None if guarantee is None else attack_on(guarantee)
    result_part, target_epsilon = (
        _result(last, result or {}),
        recipe.get("privacy", {}).get("epsilon"),
    )
    document: dict[str, Any] = {
        "version": VERSION,
        "run": path.resolve().name,
        "title": f"{recipe['training']['method']} on {_data_name(recipe)}",
        "finished": result is not None or done == recipe["training"].get("rounds"),
        "rounds": done,
        "result": result_part,
        "warnings": list((result or {}).get("warnings", ())),
        "certify": (result or {}).get("certify"),
        "guarantee": None if guarantee is None else guarantee.to_dict(),
        "progress": dict(progress) if progress else None,
        "epsilons": {
            "promised": target_epsilon or (guarantee.epsilon if guarantee else None),
            "certified": guarantee.epsilon if guarantee and guarantee.certified else None,
            "audited": _audited(path / AUDIT, guarantee),
        },
        "protects": None if guarantee is None else _SEES[guarantee.trust],
        "attack": None if attack is None else attack_document(attack),
        "columns": (result or {}).get("columns", []),
        "effects": (result or {}).get("effects", []),
        "charts": _charts(lines, result_part, guarantee, attack),
        "gallery": gallery(path, recipe, guarantee),
        "data": _data_card(recipe, guarantee),
        "model": _model_card(path, recipe, guarantee),
        "recipe": recipe,
        "versions": (result or {}).get("versions", {}),
        "recompute": f"fedveil account {path}",
    }
    checked: dict[str, Any] = plain(document | {"checklists": checklists(result_part, guarantee)})
    return checked


def _result(last: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the run ended with; of an unfinished one, its last evaluation."""
    figures = {name: (result or last).get(name) for name in ("accuracy", "rmse", "loss")}
    present = {name: value for name, value in figures.items() if value is not None}
    scores = result.get("scores") or {}
    constant = scores.get("constant", {})
    return present | {
        "scores": {
            name: {"model": scores[name], "constant": constant.get(name)}
            for name in ordered(scores)
        },
        "useless": useless(scores),
        "clearly_better_than_constant": scores.get("clearly_better_than_constant"),
        "constant_answer": {name: constant[name] for name in present if name in constant},
        "without_privacy": result.get("baseline"),
    }


def _audited(path: Path, guarantee: Guarantee | None) -> float | None:
    """Return the epsilon that an audit of this guarantee has shown, a lower bound."""
    if guarantee is None or not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        of, lower_bound = document["certified"], float(document["epsilon_at_least"])
        same = math.isclose(float(of["epsilon"]), guarantee.epsilon, rel_tol=1e-6)
        for name in ("delta", "unit", "adjacency", "trust"):
            same = same and of[name] == getattr(guarantee, name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: damaged ({error!r}); audit the run again") from None
    if not same:
        raise ConfigError(f"{path}: an audit of another guarantee; audit this run's recipe.toml")
    return lower_bound


def attack_document(attack: AttackBound) -> dict[str, Any]:
    """Return the bounds on any attack as plain values, each rounded up to four digits."""
    return {
        "mu": None if attack.mu is None else _up(attack.mu),
        "pairs": [[_up(epsilon), delta] for epsilon, delta in attack.pairs],
        "false_positives": 0.01,
        "true_positives": _up(attack.true_positives(0.01)),
        "right_guesses": _up(attack.right_guesses),
        "right_guesses_of_epsilon_alone": _up(AttackBound(attack.pairs[:1]).right_guesses),
    }


def _charts(
    lines: list[dict[str, Any]],
    result: Mapping[str, Any],
    guarantee: Guarantee | None,
    attack: AttackBound | None,
) -> dict[str, Any]:
    charts: dict[str, Any] = {}
    name = "accuracy" if any(line.get("accuracy") is not None for line in lines) else "loss"
    measured = [line for line in lines if line.get(name) is not None]
    points = [[line["round"], float(f"{line[name]:.4g}")] for line in measured]
    if len(points) > 1:
        level = {
            "best constant answer": result["constant_answer"].get(name),
            "without privacy, at its end": (result["without_privacy"] or {}).get(name),
        }
        series = {name: points} | {
            label: [[at, float(f"{value:.4g}")] for at in (points[0][0], points[-1][0])]
            for label, value in level.items()
            if value is not None
        }
        charts["learning"] = _chart("Learning curve", "round", f"{name} on test examples", series)
    if guarantee is None or attack is None:
        return charts
    spent = [
        [line["round"], _up(line["epsilon_so_far"])]
        for line in lines
        if line.get("epsilon_so_far") is not None
    ]
    if spent:
        total = _up(guarantee.epsilon)
        ends = [[spent[0][0], total], [spent[-1][0], total]]
        series = {"of the rounds so far": spent, "of the whole plan": ends}
        charts["epsilon"] = _chart("Epsilon over rounds", "round", "epsilon", series)
    epsilon_only, best = AttackBound(attack.pairs[:1]), "any attack"
    bounds = {best: attack, "as epsilon and delta alone allow": epsilon_only}
    curves = {
        name: [[rate, _up(bound.true_positives(rate))] for rate in RATES]
        for name, bound in bounds.items()
    }
    curves["tossing a coin"] = [[rate, rate] for rate in RATES]
    charts["attack"] = _chart(
        "Attack success, at most", "false-positive rate", "true-positive rate", curves
    )
    return charts


def _chart(title: str, x: str, y: str, series: Mapping[str, Any]) -> dict[str, Any]:
    listed = [{"name": name, "points": points} for name, points in series.items()]
    return {"title": title, "x": x, "y": y, "series": listed}


def _up(bound: float) -> float | None:
    """Round a bound up to four digits; infinity becomes None, for JSON."""
    return None if bound == math.inf else float(at_most(bound))


def _data_name(recipe: Mapping[str, Any]) -> str:
    data = recipe["data"]
    return title(Path(data["file"])) if "file" in data else str(data.get("source", "data"))


def _data_card(recipe: Mapping[str, Any], guarantee: Guarantee | None) -> dict[str, Any]:
    """Return public facts only. How many units there are is public under every guarantee here."""
    data = recipe["data"]
    card: dict[str, Any] = {"name": _data_name(recipe)}
    for key, label in {
        "client_column": "a client is a value of",
        "person_column": "a person is a value of",
        "label": "column to predict",
        "schema": "statistics of columns from",
        "partition": "dealt to clients",
    }.items():
        if key in data:
            card[label] = data[key]
    if guarantee is not None:
        card[f"protected {guarantee.unit}s"] = guarantee.privacy_model.population
        card["declared public"] = list(guarantee.privacy_model.declared)
    return card


def _model_card(
    path: Path, recipe: Mapping[str, Any], guarantee: Guarantee | None
) -> dict[str, Any]:
    file, training = path / MODEL, recipe["training"]
    name = recipe.get("model", {}).get("name", "auto")
    card: dict[str, Any] = {"network": "auto: a linear model" if name == "auto" else name}
    if file.exists():
        try:
            with safe_open(file, framework="np") as model:
                shapes = {name: model.get_slice(name).get_shape() for name in model.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ConfigError(f"{file}: damaged ({error!r})") from None
        card["tensors"] = {name: "x".join(map(str, shape)) for name, shape in shapes.items()}
        card["parameters"] = sum(math.prod(shape) for shape in shapes.values())
        card["file"] = MODEL
        card["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    card |= {"trained by": training["method"], "rounds": training.get("rounds")}
    card["not measured"] = "how good it is for single groups, on other data, or later"
    if guarantee is None or not guarantee.certified:
        card["not for"] = "publication as a private model: nothing is certified"
    return card
