"""One integer becomes a federation and a recipe.

Everything is drawn from one generator, widely rather than likely: rates at which training is
chaotic, clips far from all updates, batches larger than clients. What the program refuses is
skipped by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .values import Client, Draw, Kind, client

# By how often they come. Every private method is here.
METHODS = {
    "dp-fedavg": 6,
    "cheng": 3,
    "dp-fed": 1,
    "dp-fed-ls": 1,
    "fu": 2,
    "hu": 5,
    "dp-sgd": 3,
    "ddgauss": 2,
    "ae-dpfl": 1,
}
_TRUSTED = ("poisson", "poisson", "fixed", "everyone", "round-robin", "balanced", "capped-poisson")
_SEEN = ("balanced", "round-robin", "everyone", "fixed")
_SCHEDULES = ("constant", "constant", "inverse", "inverse", "inverse-sqrt", "exponential", "cosine")


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

    def __str__(self) -> str:
        sections = (
            f"{section}: {', '.join(f'{key}={value}' for key, value in keys.items())}"
            for section, keys in self.table.items()
        )
        sizes = ", ".join(f"{one.name} {len(one)}" for one in self.clients)
        more = {"module": self.module, "start": self.start, "drop_last": self.drop_last}
        more |= {"engine": self.engine, "chunk": self.chunk, **self.dealing}
        said = ", ".join(f"{key}={value}" for key, value in more.items() if value)
        return "\n  ".join(
            [f"{self.kind}", f"{self.path}: {said}", *sections, f"records: {sizes}"]
        )


def draw_case(seed: int, *, scheduled: bool = False) -> Case:
    """The case of this number. `scheduled` asks for several rounds of a public schedule."""
    draw = np.random.default_rng([seed, 1])
    method = _weighted(draw, METHODS)
    kind, path, module = _kind(draw, method)
    model = {} if module else _model(draw, method)
    engine = _engine(draw, method, module, model)
    # Automatic differentiation takes a millisecond a step and client: fewer of them.
    slow = bool(module) or engine in ("generic", "sequential") or "input_norm" in model
    most = 3 if module == "lstm" else 6 if slow else None
    names = [f"c{number:02d}" for number in range(0, 3 * int(draw.integers(3, 7)), 3)]
    size = None
    if draw.random() < 0.3:  # clients of one size go through engines' shortest ways
        size = int(draw.choice((1, 2, 4, 7, 16)))
    clients = tuple(client(draw, kind, name, size, most) for name in names)
    table = _recipe(draw, method, kind, len(clients), scheduled)
    if slow:
        _shorten(table["training"])
    if path == "csv":
        table["data"] = _data(draw, method)
    return Case(
        seed,
        {**table, "model": model},
        kind,
        path,
        _dealing(draw) if path in ("arrays", "stored") else {},
        clients,
        module,
        float(draw.choice((0.0, 0.0, 0.1, 1.0, 30.0, 1e15))),
        bool(draw.random() < 0.15),
        engine,
        None if draw.random() < 0.5 else int(draw.integers(1, 5)),
    )


def _shorten(training: dict[str, Any]) -> None:
    limits = {"rounds": 3, "local_steps": 3, "local_epochs": 1}
    training |= {key: min(training[key], most) for key, most in limits.items() if key in training}
    if "batch_size" in training:
        training["batch_size"] = max(2, training["batch_size"])


def _engine(draw: Draw, method: str, module: str, model: dict[str, Any]) -> str:
    """One that can run the case; those through automatic differentiation are slow, and rarer."""
    names = ["auto", "auto", "sequential"] + (["generic"] if module != "lstm" else [])
    if not module:
        names += ["mlp", "mlp"] if "input_norm" not in model else []
        if method not in ("hu", "dp-sgd") and not model:
            names += ["algebra", "algebra"]
        names += ["auto"] * 3
    return str(draw.choice(names))


def _kind(draw: Draw, method: str) -> tuple[Kind, str, str]:
    """What records look like, how they come in, and the model if it is one of ours."""
    path = str(draw.choice(("direct", "arrays", "stored", "csv"), p=(0.5, 0.22, 0.03, 0.25)))
    regression = method != "ae-dpfl" and draw.random() < 0.4
    task = "regression" if regression else "classification"
    shape: tuple[int, ...] = (int(draw.choice((1, 2, 3, 5, 9, 40), p=(0.1, 0.3, 0.2, 0.2, 0.1, 0.1))),)
    module, classes = "", int(draw.integers(2, 5))
    if path != "csv" and draw.random() < 0.12:
        module = str(draw.choice(("dropout", "residual", "batchnorm", "convolution", "lstm")))
        if module == "convolution":
            shape = (5, 5)
        if module == "lstm":
            task, shape, path = "sequence", (4,), "direct"
    if task == "regression":
        classes = 0
    tame, by_record = bool(draw.random() < 0.3), method in ("hu", "dp-sgd")
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
    if method in ("hu", "dp-sgd") and way < 0.6:
        return {"input_norm": float(draw.choice((0.5, 1.0, 4.0)))}
    return {}


def _recipe(
    draw: Draw, method: str, kind: Kind, clients: int, scheduled: bool
) -> dict[str, dict[str, Any]]:
    record = method in ("hu", "dp-sgd")
    training = {"method": method, **_local(draw, method, scheduled)}
    privacy: dict[str, Any] = {
        "noise_multiplier": float(10 ** draw.uniform(-1, 1.5)),
        "clip_norm": float(draw.choice((1e-6, 1e-3, 0.1, 1.0, 1.0, 1e3 if not record else 0.1))),
    }
    table: dict[str, dict[str, Any]] = {"training": training, "privacy": privacy}
    trust = _trust(draw, method)
    if trust is not None:
        privacy["trust"] = trust
    if method == "hu" and draw.random() < 0.25:
        privacy.pop("trust", None)
        privacy["unit"] = "client"
    trusted = trust == "central" or (trust is None and method not in (*_SHARES, "fu"))
    if method != "ae-dpfl":
        schemes = ("round-robin", "balanced") if scheduled else _TRUSTED if trusted else _SEEN
        _cohort(draw, training, str(draw.choice(schemes)), clients, scheduled)
    if draw.random() < 0.25:
        usual = ("replace", "zero-out") if not trusted else ("replace", "zero-out", "add-remove")
        privacy["adjacency"] = str(draw.choice(usual))
    if trust in ("central", "local") and method not in (*_SHARES, "dp-fed", "dp-fed-ls"):
        privacy["noise"] = str(draw.choice(("gaussian", "gaussian", "laplace")))
    if not record and method not in ("fu", "ae-dpfl"):
        _shaping(draw, method, training, privacy, trust)
    if (trust == "distributed" or method == "ddgauss") and draw.random() < 0.3:
        secure: dict[str, Any] = {"secure": str(draw.choice(("full", "modelled", "modelled")))}
        if draw.random() < 0.5:
            secure["dropout"] = 0.2
        table["aggregation"] = secure
    if method not in ("ae-dpfl",) and draw.random() < 0.2:
        table["server"] = {"optimizer": "adam", "momentum": 0.9, "learning_rate": 0.1}
    if method == "ae-dpfl":
        table["voting"] = {"questions": 3, "epochs": 1}
    return table


_SHARES = ("hu", "dp-sgd", "ddgauss", "ae-dpfl")


def _trust(draw: Draw, method: str) -> str | None:
    """None: the method's own."""
    if method in ("hu", "dp-sgd"):
        return str(draw.choice(("local", "distributed")))
    if method == "ddgauss":
        return None
    if method == "ae-dpfl":
        return str(draw.choice(("central", "distributed")))
    if method == "fu" and draw.random() < 0.6:
        return None
    return str(draw.choice(("central", "central", "local", "distributed")))


def _local(draw: Draw, method: str, scheduled: bool) -> dict[str, Any]:
    rounds = int(draw.integers(3, 8)) if scheduled else int(draw.choice((1, 1, 1, 2, 3)))
    training: dict[str, Any] = {
        "learning_rate": float(draw.choice((1e-3, 0.1, 0.3, 1.0, 3.0, 40.0))),
        "schedule": str(draw.choice(_SCHEDULES)),
        "decay": float(draw.choice((0.5, 1.0, 2.5, 10.0))),
    }
    if method != "ae-dpfl":
        training["rounds"] = rounds
    batched = method in ("hu", "dp-sgd") or (method != "fu" and draw.random() < 0.65)
    if batched:
        training["batch_size"] = int(draw.choice((1, 2, 3, 4, 4, 5, 6, 16)))
    if method == "hu" and draw.random() < 0.4:
        training["local_steps"] = 1
    elif draw.random() < 0.5:
        training["local_steps"] = int(draw.integers(1, 6))
    else:
        training["local_epochs"] = int(draw.integers(1, 4))
        if not batched and draw.random() < 0.05:
            training["local_epochs"] = 100  # long enough to blow up the least difference
    if method not in ("hu", "dp-sgd", "fu"):
        if draw.random() < 0.3:
            training["momentum"] = float(draw.choice((0.5, 0.9)))
        if draw.random() < 0.3:
            training["weight_decay"] = float(draw.choice((0.01, 1.0)))
    return training


def _cohort(
    draw: Draw, training: dict[str, Any], scheme: str, clients: int, scheduled: bool
) -> None:
    training["sampling"] = scheme
    if scheme == "everyone":
        return
    if scheduled:  # few enough for turns to differ
        training["cohort"] = int(draw.integers(1, max(2, clients // 2 + 1)))
    elif draw.random() < 0.5:
        training["rate"] = float(draw.choice((0.4, 0.7, 0.9, 1.0)))
    else:
        training["cohort"] = int(draw.integers(max(1, clients // 2), clients + 1))
    if scheme == "capped-poisson":
        training["cohort_cap"] = int(draw.integers(max(1, clients // 2), clients + 1))


def _shaping(
    draw: Draw, method: str, training: dict[str, Any], privacy: dict[str, Any], trust: str | None
) -> None:
    """What is done to an update before it leaves, where the method lets one choose."""
    if draw.random() < 0.25:
        training |= {"weighting": "examples", "weight_cap": int(draw.choice((1, 4, 20)))}
    if draw.random() < 0.25:
        training["sparsity"] = float(draw.choice((0.3, 0.8)))
    if method in ("dp-fedavg", "cheng") and draw.random() < 0.25:
        training["penalty"] = float(draw.choice((0.1, 2.0)))
    if method in ("dp-fedavg", "cheng", "ddgauss") and draw.random() < 0.25:
        privacy |= {"clip_quantile": 0.5, "clip_noise": 0.5, "clip_rate": 0.7}
    if trust == "distributed" and draw.random() < 0.4:
        privacy["rotate"] = True
    if method == "ddgauss" and draw.random() < 0.3:
        privacy["bits"] = 30


def _weighted(draw: Draw, choices: dict[str, int]) -> str:
    weights = np.array(list(choices.values()), dtype=np.float64)
    return str(draw.choice(list(choices), p=weights / weights.sum()))
