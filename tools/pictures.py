"""The pictures of README and docs: `python tools/pictures.py [claims terminal report site ...]`.

`claims` is drawn from results/*.json, `hospitals` from two runs of the demo's hospitals.
`terminal` is a run on examples/loans.csv, as an animation of what it prints, `report` its report,
`site` the documentation and `console` the page of a site across machines: screenshots by a headless
Chromium. `site` needs `make docs` first.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *map(str, (ROOT / "packages").iterdir())]  # for `tests` of each
IMAGES = ROOT / "docs" / "images"
# What a line is called; which file it is from; which of its rows: labels that must be so.
CLAIMS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("Liang, table 1, Poisson", "liang-table-1", {"sampling": "poisson", "epsilon": 9}),
    ("Liang, table 1, uniform", "liang-table-1", {"sampling": "fixed", "epsilon": 9}),
    ("Liang, table 2", "liang-table-2", {"z": 1.0}),
    ("Hu, figure 5, DP-SGD", "hu-figure-5", {"method": "DP-SGD"}),
    ("Fu, table II", "fu-table-2", {"clients": 5000, "epsilon": 5}),
    ("Hu, figure 5, secure sum", "hu-figure-5", {"method": "secure sum"}),
    ("Fu, table IV *", "fu-table-4", {"epsilon": 10, "E": 1}),
    ("Cheng, table 1 *", "cheng-table-1", {"epsilon": 8.0}),
    ("Hu, figure 8, secure sum", "hu-figure-8", {"method": "secure sum", "epsilon": 10.0}),
)


def claims() -> list[tuple[str, float, float]]:
    """For the noise of each experiment: its name, the epsilon claimed of it, and the one proved."""
    found = []
    for name, file, wanted in CLAIMS:
        document = json.loads((ROOT / "results" / f"{file}.json").read_text(encoding="utf-8"))
        row = next(
            row
            for row in document["rows"]
            if (wanted | {"noise": "paper"}).items() <= row["labels"].items()
        )
        found.append((name, float(row["epsilon_claimed"]), float(row["epsilon_certified"])))
    return found


def draw_claims(path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 10, "svg.hashsalt": "fedveil", "svg.fonttype": "none"}
    with rc_context(style):
        figure = Figure(figsize=(7.2, 3.5), layout="constrained")
        axes = figure.subplots()
        lines = claims()
        for place, (_, claimed, proved) in enumerate(reversed(lines)):
            colour = "#b3261e" if proved > claimed else "#1f6fb4"
            axes.plot([claimed, proved], [place, place], color=colour, linewidth=2, zorder=1)
            axes.scatter([claimed], [place], s=46, color="white", edgecolor=colour, linewidth=1.6)
            axes.scatter([proved], [place], s=52, color=colour)
            side = 1 if proved > claimed else -1
            axes.annotate(
                f"{proved:.3g}", (proved, place), (7 * side, 0), textcoords="offset points",
                va="center", ha="left" if side > 0 else "right", color=colour, fontweight="bold",
            )  # fmt: skip
        axes.set_xscale("log")
        ticks = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(0.2, 900)
        axes.set_yticks(range(len(lines)), [name for name, _, _ in reversed(lines)])
        axes.set_xlabel(
            "epsilon (log scale)\n* with the constant 1, where the paper does not give one"
        )
        last = len(lines) - 1
        for at, place, text, colour in (
            (20, last, "far more noise than needed", "#1f6fb4"),
            (0.22, 1, "less privacy\nthan promised", "#b3261e"),
        ):
            axes.text(at, place, text, va="center", color=colour, fontstyle="italic")
        axes.grid(axis="x", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        figure.suptitle("The same noise: epsilon as published ○ and as proved ●", fontsize=11)
        described = json.dumps(lines)
        figure.savefig(path, metadata={"Date": None, "Description": described}, facecolor="white")


EXAMPLE = "run --data examples/loans.csv --client-column customer --label grade"


def draw_terminal(path: Path) -> None:
    """Training on the example table as it looks in a terminal; its rounds take four seconds."""
    from tools.terminal import drawn, frames, recorded

    with tempfile.TemporaryDirectory() as folder:
        printed = recorded(_example(Path(folder)), Path(folder), os.environ)
    shown = re.compile(r"^(Guarantee:|rests on is true|dp-|[┏┃┡│└])")
    screen = list(frames(f"fedveil {EXAMPLE}", printed, shown))
    title = "fedveil trains on a table: the guarantee, the rounds, and how good the model is"
    path.write_text(drawn(title, screen, seconds=4.0), encoding="utf-8")


def _example(folder: Path) -> list[str]:
    """The command that README has, for a folder that is like a clone."""
    (folder / "examples").symlink_to(ROOT / "examples")
    return [sys.executable, "-m", "fedveil", *EXAMPLE.split(), "--output", "demo"]


def shoot_report(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(_example(Path(place)), cwd=place, check=True, capture_output=True)

        def printed(page: Any) -> None:  # one sheet of A4
            page.look(794, 1123)
            page.call("Emulation.setEmulatedMedia", media="print")

        views: dict[str, Callable[[Any], None]] = {
            "report": lambda page: page.look(1000, 1250),
            "report-phone": lambda page: page.look(390, 1250),
            "report-dark": lambda page: page.look(1000, 1250, prefers_color_scheme="dark"),
            "report-print": printed,
        }
        file = Path(place) / "demo" / "report.html"
        _shoot({name: (file, view) for name, view in views.items()}, folder)


def shoot_site(folder: Path) -> None:
    def look(page: Any) -> None:
        page.look(1300, 800)

    _shoot({"site": (ROOT / "site" / "index.html", look)}, folder)


def shoot_console(folder: Path) -> None:
    """A hospital's console: a run that is over, and a plan that waits for two persons."""
    from tests.deploy.hospitals import POLICY, hospitals

    from fedveil_federation.deploy import hub_service
    from fedveil_federation.deploy.approvals import Approvals, Persons
    from fedveil_federation.deploy.console import console

    hub_service._OWNERS = 0.0  # seconds: it need not wait for people here
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_STATE_HOME"] = place
        made = hospitals(Path(place), POLICY + "\n[ask]\napprove = true\npersons = 2\n", rows=400)
        made.meet()
        service, north = made.service(), made.homes["north"]
        for name, rounds in (("ward-a", 10), ("ward-b", 20)):
            made.queue(name, test=False, training__rounds=rounds, privacy__epsilon=2.0)
            service.step()
            for home in made.homes.values() if name == "ward-a" else ():
                approvals = Approvals.of(home)
                for person in ("ada", "bo"):
                    approvals.answer(next(iter(approvals.waiting())), True, person)
            service.step()
        persons = Persons(north.path / "persons.json")
        for person in ("ada", "bo"):
            persons.add(person, secrets.token_hex())
        approvals = Approvals.of(north)
        approvals.answer(next(iter(approvals.waiting())), True, "ada")
        with console(north) as address:
            _shoot({"console": (address, lambda page: page.look(1000, 1010))}, folder)
        made.close()


def draw_hospitals(path: Path) -> None:
    """Two runs of three hospitals by the demo's processes: batches that are secret or not."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from benchmarks.deploy_engines import free_port
    from tools import demo

    os.umask(0o077)
    runs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="fedveil-") as place:
        playing = demo.Demo(Path(place))
        lasting = 'epsilon = 6.0\nadjacency = "zero-out"'
        policy = demo.POLICY.replace("epsilon = 6.0", lasting)
        try:
            demo.found(playing, 40, 12_000, f"localhost:{free_port()}", policy)
            for name in ("hospitals", *demo.SITES):
                playing.start(name)
            demo.confirm(playing)
            recipe = (playing.folder / "recipe.toml").read_text()
            recipe = re.sub(r"batch_size = .*", 'batch_size = 200\nbatches = "{}"', recipe)
            recipe = recipe.replace("epsilon = 2.0", 'epsilon = 0.5\nadjacency = "zero-out"')
            for kind in ("shuffled", "poisson"):
                (playing.folder / f"{kind}.toml").write_text(recipe.format(kind))
                more = ("--name", kind, "--test", "test.csv", "--home", "hospitals")
                playing.fedveil("federation", "run", f"{kind}.toml", *more)
                folder = playing.folder / "hospitals" / "runs" / kind
                lines = (folder / "metrics.jsonl").read_text().splitlines()
                promise = json.loads((folder / "guarantee.json").read_text())
                runs[kind] = {
                    "accuracy": [json.loads(line)["accuracy"] for line in lines],
                    "epsilon": promise["epsilon"],
                    "certified": promise["certified"],
                }
        finally:
            playing.close()
    style: dict[Any, Any] = {"font.size": 10, "svg.hashsalt": "fedveil", "svg.fonttype": "none"}
    with rc_context(style):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        axes = figure.subplots()
        for kind, colour, said in (
            ("poisson", "#1f6fb4", "secret batches"),
            ("shuffled", "#b3261e", "batches that the hub may know"),
        ):
            rounds = range(1, len(runs[kind]["accuracy"]) + 1)
            label = f"{said}, epsilon {runs[kind]['epsilon']:.2f}"
            axes.plot(rounds, runs[kind]["accuracy"], color=colour, linewidth=1.8, label=label)
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy on public test rows")
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
        described = json.dumps(runs)
        figure.savefig(path, metadata={"Date": None, "Description": described}, facecolor="white")


def _shoot(views: Mapping[str, tuple[Path | str, Callable[[Any], None]]], folder: Path) -> None:
    from tests.report.browser import Page, installed

    program = installed()
    if program is None:
        raise SystemExit("no Chromium here: install it with apt-get install chromium")
    page = Page(program)
    page.call("Emulation.setScrollbarsHidden", hidden=True)
    try:
        for name, (file, view) in views.items():
            view(page)
            page.open(file)
            page.settle()
            page.screenshot(folder / f"{name}.webp", "webp")
    finally:
        page.close()


PICTURES: dict[str, Callable[[], None]] = {
    "claims": lambda: draw_claims(IMAGES / "claims.svg"),
    "terminal": lambda: draw_terminal(IMAGES / "run.svg"),
    "report": lambda: shoot_report(IMAGES),
    "site": lambda: shoot_site(IMAGES),
    "console": lambda: shoot_console(IMAGES),
    "hospitals": lambda: draw_hospitals(IMAGES / "hospitals.svg"),
}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        PICTURES[chosen]()
