"""Three hospitals and a hub, as separate processes with mTLS: `make demo`.

Made-up patients are dealt to three hospitals, who protect single records under a secure sum. On the
way one hospital and the hub are killed (-9) and started again. At the end there are a certified
model, a ledger at each hospital and a report. Everything is done by the commands of docs/deploy.md,
on this machine alone: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SITES = ("north", "south", "east")
POLICY = """\
# What this hospital allows. What is not named is not allowed.
[budget]            # of one run
epsilon = 3.0
delta = 1e-5

[lifetime]          # of all runs together
epsilon = 6.0
delta = 1e-5

[allow]
methods = ["dp-sgd"]
models = ["logistic"]
units = ["record"]
rounds = 100

[cohort]
minimum = 3
honest_shares = 2
colluders = 1       # one hospital may work with the hub: its noise does not count

[show]
budget = true
"""
SCHEMA = """\
[columns]
age = {type = "number", min = 18, max = 100}
pressure = {type = "number", mean = 130.0, std = 20.0}
stays = {type = "number", min = 0, max = 10}
smokes = {type = "category", categories = ["no", "yes"]}
ward = {type = "category", categories = ["surgery", "medicine", "maternity"]}
readmitted = {type = "category", categories = ["no", "yes"]}
"""
RECIPE = """\
# One noisy gradient of every hospital in a round, under a secure sum; a record is protected.
[model]
name = "logistic"
input_norm = 3.0

[training]
method = "dp-sgd"
rounds = {rounds}
sampling = "everyone"
batch_size = {batch}
learning_rate = 2.0

[privacy]
epsilon = 2.0
delta = 1e-6
clip_norm = 1.0
colluders = 1

[aggregation]
secure = "masked"

[evaluation]
every = 1
"""


@dataclass
class Demo:
    """Commands and processes, in one folder."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)  # by party, of its process

    @property
    def environment(self) -> dict[str, str]:
        """Notes about these ledgers go with the demo: the next one has the same rows."""
        return {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def fedveil(self, *arguments: str) -> Any:
        """A command's JSON answer."""
        command = [sys.executable, "-m", "fedveil", *arguments, "--json"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"fedveil {' '.join(arguments)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def each(self, words: Callable[[str], Sequence[str]]) -> list[Any]:
        """A command of every hospital, all at once: they are different machines elsewhere."""
        with ThreadPoolExecutor(len(SITES)) as pool:
            return list(pool.map(lambda site: self.fedveil(*words(site)), SITES))

    def start(self, name: str, *more: str) -> None:
        kind = "hub" if name == "hospitals" else "site"
        command = [sys.executable, "-m", "fedveil", kind, "start", "--home", name, *more]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environment, **self.variables.get(name, {})},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()

    def wait(self, what: str, ready: Any, seconds: float = 600.0) -> Any:
        """What `ready` gives as soon as it gives something."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended = [name for name, one in self.processes.items() if one.poll() is not None]
            if ended:
                said = (self.folder / f"{ended[0]}.log").read_text()[-2000:]
                sys.exit(f"{ended[0]} has ended:\n{said}")
            if found := ready():
                return found
            time.sleep(0.2)
        sys.exit(f"waited {seconds:.0f} s for {what}; see the logs in {self.folder}")

    def rounds(self, run: str) -> int:
        path = self.folder / "hospitals" / "runs" / run / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0


def patients(rows: int, seed: int) -> str:
    """Return made-up patients as CSV: old smokers with high pressure often come back."""
    draw = np.random.default_rng(seed)
    age, pressure = draw.integers(18, 95, rows), draw.normal(130, 20, rows).round()
    stays, smokes = draw.poisson(1.2, rows), draw.random(rows) < 0.3
    ward = draw.choice(["surgery", "medicine", "maternity"], rows)
    score = (age - 60) / 15 + (pressure - 130) / 25 + 0.6 * stays + 1.2 * smokes
    score += np.where(ward == "maternity", -1.5, 0.3)
    again = draw.random(rows) < 1 / (1 + np.exp(-2 * (score - 0.8)))
    columns = (age, pressure.astype(int), stays, np.where(smokes, "yes", "no"), ward)
    lines = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    told = [f"{line},{'yes' if one else 'no'}" for line, one in zip(lines, again, strict=True)]
    return "\n".join(["age,pressure,stays,smokes,ward,readmitted", *told]) + "\n"


def write_tables(folder: Path, rows: int) -> None:
    """Write each hospital's patients, public test rows for the hub, and the schema."""
    for number, site in enumerate(SITES):
        (folder / f"{site}.csv").write_text(patients(rows // len(SITES), number))
    (folder / "test.csv").write_text(patients(rows // 4, len(SITES)))
    (folder / "schema.toml").write_text(SCHEMA)


def found(demo: Demo, rounds: int, rows: int, address: str, policy: str = POLICY) -> None:
    """Files, federation and bundles; every hospital joins."""
    write_tables(demo.folder, rows)
    (demo.folder / "policy.toml").write_text(policy)
    batch = min(2000, rows // 6)
    (demo.folder / "recipe.toml").write_text(RECIPE.format(rounds=rounds, batch=batch))
    sites = [word for site in SITES for word in ("--site", site)]
    schema = ("--schema", "schema.toml", "--label", "readmitted")
    demo.fedveil("federation", "init", "hospitals", "--hub", address, *sites, *schema)
    demo.say(f"federation founded, hub at {address}; a bundle for each of {', '.join(SITES)}")

    def join(site: str) -> Sequence[str]:
        own = ("--data", f"{site}.csv", "--policy", "policy.toml", *schema[:2])
        return ("site", "join", f"hospitals/bundles/{site}.bundle", *own)

    for one in demo.each(join):
        demo.say(f"{one['site']} has joined with {one['rows']} rows that stay where they are")


def confirm(demo: Demo) -> None:
    """The owners compare the members' list and confirm it, as soon as everybody is there."""
    proposed = [demo.folder / site / "members-proposed.toml" for site in SITES]
    demo.wait("the members' list", lambda: all(path.exists() for path in proposed))
    lists = demo.each(lambda site: ("site", "members", "--home", site))
    (fingerprint,) = {one["fingerprint"] for one in lists}
    demo.say(f"hub and hospitals are connected; all owners read {fingerprint}")
    demo.each(lambda site: ("site", "trust", fingerprint, "--home", site))


def train(demo: Demo, rounds: int) -> dict[str, Any]:
    """One run, with a hospital and the hub killed on the way."""
    wanted = ("--name", "first", "--test", "test.csv", "--home", "hospitals")
    demo.fedveil("federation", "run", "recipe.toml", *wanted, "--detach")
    demo.wait("the first rounds", lambda: demo.rounds("first") >= rounds // 4)
    demo.kill("south")
    demo.say(f"south was killed (-9) after round {demo.rounds('first')}")
    demo.start("south")
    demo.wait("more rounds", lambda: demo.rounds("first") >= rounds // 2)
    demo.kill("hospitals")
    demo.say(f"the hub was killed (-9) after round {demo.rounds('first')}")
    demo.start("hospitals")
    ended = demo.folder / "hospitals" / "queue" / "first.ended.json"
    demo.wait("the end of the run", ended.exists)
    outcome: dict[str, Any] = json.loads(ended.read_text())
    if outcome["outcome"] != "done":
        sys.exit(f"the run was {outcome['outcome']}: {outcome['reason']}")
    return outcome


def show(demo: Demo) -> dict[str, Any]:
    """What there is at the end."""
    run = demo.folder / "hospitals" / "runs" / "first"
    (report,) = demo.fedveil("report", str(run))["runs"]
    result = json.loads((run / "result.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        came = line["dropouts"]
        said = came.get("not_released") or f"{came['survivors']} of {came['cohort']} hospitals"
        demo.say(f"  round {line['round']}: {said}, accuracy {line['accuracy']:.1%}")
    certified = bool(report["guarantee"]["certified"])
    demo.say(f"accuracy {result['accuracy']:.1%} on public test rows; certified: {certified}")
    ledgers = demo.each(lambda site: ("site", "ledger", "--home", site))
    for one in ledgers:
        (spent,) = one["runs"]
        demo.say(
            f"ledger of {one['site']}: epsilon {one['epsilon']:.3f} of {one['budget_epsilon']:g} "
            f"for one {one['unit']}, {spent['rounds']} rounds"
        )
    demo.say(f"report: {run / 'report.html'}")
    seconds = time.monotonic() - demo.began
    return {"result": result, "certified": certified, "ledgers": ledgers, "seconds": seconds}


def play(folder: Path, rounds: int, rows: int) -> dict[str, Any]:
    demo = Demo(folder)
    try:
        found(demo, rounds, rows, f"localhost:{_free_port()}")
        for name in ("hospitals", *SITES):
            demo.start(name)
        confirm(demo)
        train(demo, rounds)
        return show(demo)
    finally:
        demo.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="a new folder to work in")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--rows", type=int, default=12_000, help="of all hospitals together")
    one = parser.add_mutually_exclusive_group()  # where containers run the parties
    one.add_argument("--found", metavar="HOST:PORT", help="only found the federation and join it")
    one.add_argument("--train", action="store_true", help="only confirm the members and train")
    args = parser.parse_args()
    os.umask(0o077)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="fedveil-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    demo = Demo(folder.absolute())
    if args.found:
        found(demo, args.rounds, args.rows, args.found)
    elif args.train:
        confirm(demo)
        wanted = ("--name", "first", "--test", "test.csv", "--home", "hospitals")
        demo.fedveil("federation", "run", "recipe.toml", *wanted)
        show(demo)
    else:
        play(folder.absolute(), args.rounds, args.rows)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
