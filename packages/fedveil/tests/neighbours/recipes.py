"""Recipes, drawn widely: rates at which training is chaotic, clips far from all updates, batches
larger than clients. What goes with what is the program's matter, which refuses the rest."""

from __future__ import annotations

from typing import Any

from .values import Draw

_TRUSTED = (*("poisson",) * 4, "fixed", "everyone", "round-robin", "balanced", "capped-poisson")
_SEEN = ("balanced", "round-robin", "everyone", "fixed")
_SCHEDULES = ("constant", "constant", *("inverse",) * 3, "inverse-sqrt", "exponential", "cosine")
_SHARES = ("gradient-noise", "dp-sgd", "ddgauss", "ae-dpfl")


def draw_recipe(
    draw: Draw, method: str, clients: int, scheduled: bool
) -> dict[str, dict[str, Any]]:
    record = method in ("gradient-noise", "dp-sgd")
    training = {"method": method, **_local(draw, method, scheduled)}
    privacy: dict[str, Any] = {
        "noise_multiplier": float(10 ** draw.uniform(-1, 1.5)),
        "clip_norm": float(
            draw.choice((1e-6, 1e-3, 0.1, 1.0, *((1e-6,) if record else (1.0, 1e3))))
        ),
    }
    table: dict[str, dict[str, Any]] = {"training": training, "privacy": privacy}
    trust = _trust(draw, method)
    if trust is not None:
        privacy["trust"] = trust
    if method == "gradient-noise" and draw.random() < 0.25:
        privacy.pop("trust", None)
        privacy["unit"] = "client"
    trusted = trust == "central" or (trust is None and method not in (*_SHARES, "client-noise"))
    if method != "ae-dpfl":
        schemes = ("round-robin", "balanced") if scheduled else _TRUSTED if trusted else _SEEN
        _cohort(draw, training, str(draw.choice(schemes)), clients, scheduled)
    declarable = training.get("sampling") in ("poisson", "everyone") and trusted
    if declarable and draw.random() < 0.4:
        privacy["public_clients"] = clients + int(draw.integers(1, 4))
        privacy["adjacency"] = "add-remove"
    elif draw.random() < 0.25:
        usual = ("replace", "zero-out") if not trusted else ("replace", "zero-out", "add-remove")
        privacy["adjacency"] = str(draw.choice(usual))
    if trust in ("central", "local") and method not in (*_SHARES, "dp-fed", "laplacian-smoothing"):
        privacy["noise"] = str(draw.choice(("gaussian", "gaussian", "laplace")))
    if not record and method not in ("client-noise", "ae-dpfl"):
        _shaping(draw, method, training, privacy, trust)
    if (trust == "distributed" or method == "ddgauss") and draw.random() < 0.3:
        secure: dict[str, Any] = {"secure": str(draw.choice(("masked", "ideal", "ideal")))}
        if draw.random() < 0.5:
            secure["dropout"] = 0.2
        table["aggregation"] = secure
        if draw.random() < 0.4 and clients > 3:
            privacy["colluders"] = 1
    if method not in ("ae-dpfl",) and draw.random() < 0.2:
        table["server"] = {"optimizer": "adam", "momentum": 0.9, "learning_rate": 0.1}
    if method == "ae-dpfl":
        table["voting"] = {"questions": 3, "epochs": 1}
    return table


def _trust(draw: Draw, method: str) -> str | None:
    """None: the method's own."""
    if method in ("gradient-noise", "dp-sgd"):
        return str(draw.choice(("local", "distributed")))
    if method == "ddgauss":
        return None
    if method == "ae-dpfl":
        return str(draw.choice(("central", "distributed")))
    if method == "client-noise" and draw.random() < 0.6:
        return None
    return str(draw.choice(("central", "central", "central", "local", "distributed")))


def _local(draw: Draw, method: str, scheduled: bool) -> dict[str, Any]:
    schedule = str(draw.choice(_SCHEDULES))
    training: dict[str, Any] = {
        "learning_rate": float(draw.choice((1e-3, 0.1, 0.3, 1.0, 3.0, 40.0))),
        "schedule": schedule,
        "decay": float(draw.choice((0.5, 1.0, 2.5, 10.0))),
    }
    rounds = int(draw.choice((1, 1, 1, 1, 2) if schedule == "constant" else (1, 1, 2, 2, 2, 3)))
    if scheduled:
        rounds = int(draw.integers(3, 6))
    if method != "ae-dpfl":
        training["rounds"] = rounds
    batched = method in ("gradient-noise", "dp-sgd") or (
        method != "client-noise" and draw.random() < 0.65
    )
    if batched:
        training["batch_size"] = int(draw.choice((1, 2, 3, 4, 4, 5, 6, 16)))
    if method == "gradient-noise" and draw.random() < 0.4:
        training["local_steps"] = 1
    elif draw.random() < 0.4:
        training["local_steps"] = int(draw.choice((1, 2, 2, 3, 5)))
    else:
        training["local_epochs"] = int(draw.choice((1, 1, 2, 3)))
        if not batched and not scheduled and draw.random() < 0.04:
            # Long enough to blow up the least difference.
            training |= {"local_epochs": 80, **({"rounds": 1} if "rounds" in training else {})}
    if method not in ("gradient-noise", "dp-sgd", "client-noise"):
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
        training["cohort"] = int(draw.integers(1 + (clients > 3), max(2, clients // 2) + 1))
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
    if method in ("dp-fedavg", "bounded-sparse") and draw.random() < 0.25:
        training["penalty"] = float(draw.choice((0.1, 2.0)))
    if method in ("dp-fedavg", "bounded-sparse", "ddgauss") and draw.random() < 0.25:
        privacy |= {"clip_quantile": 0.5, "clip_rate": 0.7}
        if "sparsity" in training:  # noise on counts by default, and a clip that only falls
            privacy["clip_highest"] = privacy.get("clip_norm", 1.0)
        else:
            privacy["clip_noise"] = 0.5
    if trust == "distributed" and draw.random() < 0.4:
        privacy["rotate"] = True
    if method == "ddgauss" and draw.random() < 0.3:
        privacy["bits"] = 30


def correlate(draw: Draw, table: dict[str, dict[str, Any]], clients: int) -> None:
    """Make noise correlated where it can be: a trusted aggregator, a public schedule, one clip."""
    training, privacy = table["training"], table["privacy"]
    trusted = privacy.get("trust") == "central" and "public_clients" not in privacy
    if not trusted or training["method"] in ("client-noise", "ae-dpfl"):
        return
    for key in ("clip_quantile", "clip_noise", "clip_rate", "clip_highest", "noise", "adjacency"):
        privacy.pop(key, None)
    for key in ("rate", "cohort_cap"):
        training.pop(key, None)
    training |= {"sampling": "round-robin", "rounds": int(draw.integers(2, 8))}
    training["cohort"] = int(draw.integers(1, clients // 2 + 1))
    privacy["adjacency"] = str(draw.choice(("zero-out", "replace")))
    privacy["correlated"] = str(draw.choice(("optimised", "square-root")))
    if draw.random() < 0.3:
        privacy["bands"] = int(draw.integers(1, 4))
