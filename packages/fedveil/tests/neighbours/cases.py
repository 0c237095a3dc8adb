"""One integer becomes a federation and a recipe.

Everything is drawn from one generator. What the program refuses is skipped by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .recipes import correlate, draw_recipe
from .values import Client, Draw, Kind, client, with_persons

# By how often they come. Every private method is here but moments: tests/methods/test_moments.py.
METHODS = {
    "dp-fedavg": 6,
    "bounded-sparse": 3,
    "dp-fed": 1,
    "laplacian-smoothing": 1,
    "client-noise": 2,
    "gradient-noise": 5,
    "dp-sgd": 3,
    "ddgauss": 2,
    "ae-dpfl": 1,
}
CORRELATED = 4  # one case in so many has correlated noise, if it can
SEVERAL = 8  # one case in so many has several labels, if it has classes
SECRET = 4  # one case in so many has secret batches, if its noise is in the gradients
COINS = 9  # one case in so many has clients with secret coins, if its noise comes in shares
SCALED = 11  # one case in so many has budgets of single clients, if they are kept by clipping
PERSONS = 7  # one case in so many protects persons, if its noise is in the gradients
RESUMED = 16  # one case in so many has a public schedule, and is killed and resumed as well
LOSSES = ("huber", "fragile")  # of somebody's own; the second raises at numbers that are too large
GIVEN = ("own", "quiet", "together")  # engines that a run is given; two of them protect less


@dataclass(frozen=True, eq=False)
class Case:
    """What both worlds have in common, and the first one's clients."""

    seed: int
    table: dict[str, Any]  # the recipe
    kind: Kind
    path: str  # how the data come in: direct, arrays, stored or csv
    dealing: dict[str, Any]  # hold-out and caps of arrays; a file's are in the recipe
    clients: tuple[Client, ...] = field(repr=False)
    module: str = ""  # one of the harness's own modules; empty: the recipe's
    start: float = 0.0  # scale of the initial weights; 0: the model's own
    drop_last: bool = False
    engine: str = "auto"
    chunk: int | None = None
    processes: int = 1
    pixels: bool = False  # inputs stored as bytes
    room: int | None = None  # numbers that engines hold at once: so few that groups are cut
    slow: bool = False  # a run takes several times as long as others do
    loss: str = ""  # one of LOSSES; empty: the task's own
    given: str = ""  # one of GIVEN; empty: the run makes its engine
    persons: bool = False  # whose records are known, and who are protected
    scaled: bool = False  # clients clip to shares of the clip

    @property
    def features(self) -> bool:
        """Whether the model sees features of the inputs."""
        return "features" in self.table["model"]

    def __str__(self) -> str:
        sections = (
            f"{section}: {', '.join(f'{key}={value}' for key, value in keys.items())}"
            for section, keys in self.table.items()
        )
        sizes = ", ".join(f"{one.name} {len(one)}" for one in self.clients)
        more = {"module": self.module, "start": self.start, "drop_last": self.drop_last}
        more |= {
            "engine": self.engine,
            "chunk": self.chunk,
            "pixels": self.pixels,
            "room": self.room,
            "loss": self.loss,
            "given": self.given,
            "persons": self.persons,
            "scaled": self.scaled,
        }
        more |= self.dealing
        said = ", ".join(f"{key}={value}" for key, value in more.items() if value)
        return "\n  ".join([f"{self.kind}", f"{self.path}: {said}", *sections, f"records: {sizes}"])


def draw_case(seed: int) -> Case:
    """The case of this number."""
    draw, scheduled = np.random.default_rng([seed, 1]), seed % RESUMED == 0
    method = _weighted(draw, METHODS)
    kind, path, module = _kind(draw, method)
    model = {} if module else _model(draw, method)
    engine = _engine(draw, method, module, model)
    if seed % SEVERAL == 5 and kind.task == "classification" and method != "ae-dpfl":
        kind = replace(kind, task="multi-label")
        engine = "mlp" if engine == "algebra" else engine
    # Automatic differentiation takes a millisecond a step and client: fewer of them.
    slow = bool(module) or engine in ("generic", "sequential") or "input_norm" in model
    most = 3 if module == "lstm" else 5 if slow else None
    numbers = range(0, 3 * int(draw.choice((3, 3, 4) if slow else (3, 3, 4, 4, 5, 6))), 3)
    plain = path == "csv" and draw.random() < 0.4  # names that a file's reader takes for numbers
    names = [str(number) if plain else f"c{number:02d}" for number in numbers]
    size = None
    if draw.random() < 0.3:  # clients of one size go through engines' shortest ways
        size = int(draw.choice((1, 2, 4, 7, 16)))
    clients = tuple(client(draw, kind, name, size, most) for name in names)
    table = draw_recipe(draw, method, len(clients), scheduled)
    if seed % CORRELATED == 0:
        correlate(np.random.default_rng([seed, 7]), table, len(clients))
    if method == "gradient-noise" and seed % SECRET == 3:
        table["training"]["batches"] = "poisson"
        table["privacy"].pop("unit", None)
    shares = table["privacy"].get("trust") == "distributed" or method == "ddgauss"
    if shares and not kind.by_record and seed % COINS == 7 and method != "ae-dpfl":
        table["training"] |= {"sampling": "secret-poisson", "rate": float(draw.choice((0.4, 0.9)))}
        table["training"].pop("cohort", None)
    if slow:
        _shorten(table["training"])
    if path == "csv":
        table["data"] = _data(draw, method)
    made = Case(
        seed,
        {**table, "model": model},
        kind,
        path,
        _dealing(draw) if path in ("arrays", "stored") else {},
        clients,
        module,
        float(draw.choice((0.0, 0.0, 0.0, 0.1, 1.0, 30.0, 1e15))),
        bool(draw.random() < 0.1),
        engine,
        None if draw.random() < 0.5 else int(draw.integers(1, 5)),
        pixels=path == "direct" and kind.task != "sequence" and bool(draw.random() < 0.08),
        room=int(draw.choice((20, 100, 500))) if draw.random() < 0.3 else None,
        slow=slow or table.get("aggregation", {}).get("secure") == "masked",
        scaled=seed % SCALED == 6 and _scalable(method, table),
    )
    return _with_persons(_with_parts(made))


def _scalable(method: str, table: dict[str, dict[str, Any]]) -> bool:
    """Whether a smaller clip of one client bounds what it sends, and its place stays its own."""
    training, privacy = table["training"], table["privacy"]
    clipped = method in ("dp-fedavg", "bounded-sparse", "ddgauss", "client-noise")
    places = training.get("sampling") in ("everyone", "round-robin", "balanced", "secret-poisson")
    whole = {"clip_quantile", "public_clients", "correlated"}.isdisjoint(privacy)
    return clipped and places and whole and privacy.get("adjacency") != "add-remove"


def _with_persons(case: Case) -> Case:
    """One case in so many protects persons, where rows are not chosen by their places."""
    unit = case.table["privacy"].get("unit")
    if not case.kind.by_record or case.seed % PERSONS != 2 or unit is not None or case.given:
        return case
    draw, limits = np.random.default_rng([case.seed, 10]), ("cap", "examples_per_client")
    dealing = {key: value for key, value in case.dealing.items() if key not in limits}
    if dealing.get("holdout") == "latest":
        dealing["holdout"] = "within"
    training, privacy = dict(case.table["training"]), {**case.table["privacy"], "unit": "person"}
    if training["method"] == "dp-sgd":
        training = {key: it for key, it in training.items() if not key.startswith("local_")}
    if draw.random() < 0.5:
        training["batches"] = "poisson"
        privacy.pop("adjacency", None)
    table = {**case.table, "training": training, "privacy": privacy}
    if "data" in table:
        table["data"] = {key: value for key, value in table["data"].items() if key not in limits}
    clients = tuple(with_persons(draw, one) for one in case.clients)
    return replace(case, table=table, dealing=dealing, clients=clients, persons=True)


def _with_parts(case: Case) -> Case:
    """One case in four has a part that most have not: features, weights of classes, a loss or an
    engine of one's own."""
    draw, training = np.random.default_rng([case.seed, 9]), case.table["training"]
    voting = training["method"] == "ae-dpfl"
    if draw.random() > 1 / 4 or case.module or case.drop_last or voting or case.seed % RESUMED == 0:
        return case
    part = str(draw.choice(("features", "weights", "loss", "given", "given")))
    if part == "features" and not case.pixels:
        made = {"features": "random", "width": 6, "bandwidth": float(draw.choice((0.3, 10.0)))}
        model = {key: value for key, value in case.table["model"].items() if key != "input_norm"}
        return replace(case, table={**case.table, "model": {**model, **made}}, engine="auto")
    if part == "weights" and case.kind.task == "classification":
        first = "k0" if case.path == "csv" else "0"
        weighted = {**training, "class_weights": {first: float(draw.choice((0.0, 0.5, 7.0)))}}
        return replace(case, table={**case.table, "training": weighted}, engine="auto")
    if part == "loss" and case.kind.task == "regression" and case.path != "csv":
        return replace(case, loss=str(draw.choice(LOSSES)), engine="auto")
    if part == "given":
        given = str(draw.choice(GIVEN))
        if given == "quiet" and not case.kind.by_record:  # noise is added outside the engine
            given = "together"
        return replace(case, given=given)
    return case


def _shorten(training: dict[str, Any]) -> None:
    limits = {"rounds": 2, "local_steps": 2, "local_epochs": 1}
    training |= {key: min(training[key], most) for key, most in limits.items() if key in training}
    if "batch_size" in training:
        training["batch_size"] = max(2, training["batch_size"])


def _engine(draw: Draw, method: str, module: str, model: dict[str, Any]) -> str:
    """One that can run the case; those through automatic differentiation are slow, and rarer."""
    names = ["auto", "auto", "sequential"] + (["generic"] if module != "lstm" else [])
    if not module:
        names += ["mlp"] * 4 if "input_norm" not in model else []
        if method not in ("gradient-noise", "dp-sgd") and not model:
            names += ["algebra"] * 4
        names += ["auto"] * 8
    return str(draw.choice(names))


def _kind(draw: Draw, method: str) -> tuple[Kind, str, str]:
    """What records look like, how they come in, and the model if it is one of ours."""
    path = str(draw.choice(("direct", "arrays", "stored", "csv"), p=(0.54, 0.22, 0.03, 0.21)))
    regression = method != "ae-dpfl" and draw.random() < 0.4
    task = "regression" if regression else "classification"
    shape: tuple[int, ...] = (
        int(draw.choice((1, 2, 3, 5, 9, 40), p=(0.1, 0.3, 0.2, 0.2, 0.1, 0.1))),
    )
    module, classes = "", int(draw.integers(2, 5))
    if path != "csv" and draw.random() < 0.08:
        module = str(draw.choice(("dropout", "residual", "batchnorm", "convolution", "lstm")))
        if module == "convolution":
            shape = (5, 5)
        if module == "lstm":
            task, shape, path = "sequence", (4,), "direct"
    if task == "regression":
        classes = 0
    tame, by_record = bool(draw.random() < 0.3), method in ("gradient-noise", "dp-sgd")
    return Kind(task, shape, classes, path != "direct", tame, by_record), path, module


def _dealing(draw: Draw) -> dict[str, Any]:
    dealing: dict[str, Any] = {
        "test_fraction": float(draw.choice((0.1, 0.3, 0.3, 0.5))),
        "holdout": str(draw.choice(("within", "within", "latest", "pooled", "clients"))),
        "seed": int(draw.integers(3)),
    }
    if draw.random() < 0.3:
        limit = str(draw.choice(("cap", "cap", "examples_per_client", "at_least")))
        dealing[limit] = int(draw.integers(1, 6))
    if draw.random() < 0.1:
        dealing["clients"] = int(draw.integers(2, 5))
    return dealing


def _data(draw: Draw, method: str) -> dict[str, Any]:
    """Keys of a recipe's data section; the file is written later."""
    data: dict[str, Any] = {"seed": int(draw.integers(3))}
    if draw.random() < 0.6:
        data["test_fraction"] = float(draw.choice((0.1, 0.25, 0.5)))
    if draw.random() < 0.3:
        data[str(draw.choice(("cap", "cap", "examples_per_client")))] = int(draw.integers(1, 6))
    if method == "ae-dpfl":
        data["public_fraction"] = 0.2
    return data


def _model(draw: Draw, method: str) -> dict[str, Any]:
    way = draw.random()
    if way < 0.4:
        return {"name": "mlp", "hidden": [int(w) for w in draw.integers(1, 5, draw.integers(1, 3))]}
    if method in ("gradient-noise", "dp-sgd") and way < 0.5:
        return {"input_norm": float(draw.choice((0.5, 1.0, 4.0)))}
    return {}


def _weighted(draw: Draw, choices: dict[str, int]) -> str:
    weights = np.array(list(choices.values()), dtype=np.float64)
    return str(draw.choice(list(choices), p=weights / weights.sum()))
