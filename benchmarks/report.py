"""`results.json` as a page for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.measure import Document
from benchmarks.workloads import WORKLOADS

PFL = ("pfl", "pfl:threads")
GENERAL = ("fedveil:mlp", "fedveil:generic")
START = "start_seconds"


@dataclass(frozen=True)
class Target:
    """`against` takes at least `least` times as long as `ours` (the fastest of each)."""

    workload: str
    ours: tuple[str, ...]
    against: tuple[str, ...]
    least: float
    what: str = "best"  # or the start


OURS = ("fedveil",)
PROTECTED = ("fedveil:protected",)
OPACUS = ("opacus", "opacus:threads", "opacus:hooks")
TARGETS = (
    Target("W1", OURS, PFL, 25),
    Target("W1", OURS, ("flower",), 80),
    Target("W1", GENERAL, PFL, 12),
    Target("W1", GENERAL, ("flower",), 40),
    Target("W2", OURS, PFL, 800),
    Target("W2", GENERAL, PFL, 100),
    Target("W2x12", OURS, PFL, 1000),
    Target("W2x12", GENERAL, PFL, 100),
    Target("W3", OURS, ("opacus",), 14),
    Target("W1", PROTECTED, PFL, 5),
    Target("W2", PROTECTED, PFL, 50),
    Target("W2x12", PROTECTED, PFL, 50),
    Target("W3", PROTECTED, ("opacus",), 5),
    Target("W4", OURS, (*PFL, "flower"), 1.25),
    Target("W5", OURS, (*PFL, "flower"), 1.25),
    Target("W6", OURS, PFL, 1.1),
    *(Target(name, OURS, OPACUS, 1.5) for name in ("W8", "W8x256")),
    *(Target(name, PROTECTED, OPACUS, 1.0) for name in ("W8", "W8x256")),
    *(Target(name, OURS, OPACUS, 1.0) for name in ("W8-lstm", "W8-resnet")),
    Target("W1", OURS, PFL, 2, START),
    Target("W1", OURS, ("flower",), 5, START),
)
NEAR_FLOOR = {"W4": 1.5, "W5": 1.5}  # fedveil's round is at most so many floors
LARGE = "cohort of 10,000 among", 1_000_000  # the step of growth with limits of its own
LARGE_SECONDS, LARGE_MEMORY = 2.0, 1.5  # a round; the memory, in sizes of the data


def fastest(rounds: Iterable[Document], target: Target, names: Sequence[str]) -> Document | None:
    found = [
        run
        for run in rounds
        if run["workload"] == target.workload and run["system"] in names and "best" in run
    ]
    return min(found, key=lambda run: float(run[target.what])) if found else None


def ratio(rounds: Sequence[Document], target: Target, what: str) -> float | None:
    """How many times as long the other one takes, by `best`, `median` or the start."""
    ours, other = (fastest(rounds, target, names) for names in (target.ours, target.against))
    return float(other[what]) / float(ours[what]) if ours and other else None


def render(results: Document) -> str:
    parts = [
        "# Benchmarks\n",
        "Made by `make bench`; what and how: [docs/benchmarks.md](../docs/benchmarks.md).\n",
        _machine(results),
        "## A round\n",
        _rounds(results["rounds"]),
        _troubles(results["rounds"]),
        "## Targets\n",
        _targets(results),
    ]
    if results["growth"]:
        parts += ["## Growth\n", _growth(results["growth"])]
    if results["parts"]:
        parts += ["## Parts, on one core\n", _parts(results["parts"])]
    return "\n".join(part for part in parts if part)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _machine(results: Document) -> str:
    facts = results["machine"] | {
        run["system"]: run["version"] for run in results["rounds"] if run.get("version")
    }
    listed = ", ".join(f"{name} {value}" for name, value in facts.items() if ":" not in name)
    quick = " (quick: few rounds, rough figures)" if results["quick"] else ""
    again = "".join(
        f" {name} was measured again on {when['date']} in {when['passes']} passes."
        for name, when in results.get("again", {}).items()
    )
    return (
        f"{listed}. {results['date']}, interleaved passes: {results['passes']}{quick}, "
        f"{results.get('minutes', '?')} minutes.{again}\n"
    )


def seconds(value: float) -> str:
    """Three digits with the unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size or unit == "us":
            scaled = value / size
            return f"{scaled:.{max(0, 2 - len(str(int(scaled))) + 1)}f} {unit}"
    raise AssertionError


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def _rounds(rounds: Sequence[Document]) -> str:
    head = "workload", "system", "best", "median", "best / fedveil", "median / fedveil"
    rows = []
    for name, workload in WORKLOADS.items():
        runs = [run for run in rounds if run["workload"] == name and "best" in run]
        ours = next((run for run in runs if run["system"] == "fedveil"), None)
        for run in sorted(runs, key=lambda run: float(run["best"])):
            ratios = [times(run[k] / ours[k]) if ours else "" for k in ("best", "median")]
            floor = run["system"] == "floor"
            rows.append(
                [
                    f"{name}: {workload.summary}"
                    if run is min(runs, key=lambda r: r["best"])
                    else "",
                    run["system"],
                    seconds(run["best"]),
                    seconds(run["median"]),
                    *ratios,
                    "" if floor else f"{run['start_seconds']:.1f} s",
                    "" if floor else f"{run['peak_memory_mb']:.0f} MB",
                    run["configuration"],
                ]
            )
    return _table([*head, "start", "memory", "how"], rows)


def _troubles(rounds: Sequence[Document]) -> str:
    lines = [
        f"- {run['workload']} {run['system']} {kind}: {str(run[kind]).splitlines()[-1]}\n"
        for run in rounds
        for kind in ("skipped", "failed")
        if kind in run
    ]
    return "".join(["Not measured:\n\n", *lines]) if lines else ""


def _targets(results: Document) -> str:
    rows = [*_ratios(results["rounds"]), *_floors(results["rounds"]), *_large(results["growth"])]
    return _table(["of", "ours", "against", "wanted", "best", "median", ""], rows)


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def _ratios(rounds: Sequence[Document]) -> Iterator[list[str]]:
    for target in TARGETS:
        best = ratio(rounds, target, target.what)
        if best is None:
            continue
        start = target.what == START
        middle = None if start else ratio(rounds, target, "median")
        yield [
            f"{target.workload}, {'start to first round' if start else 'round'}",
            " or ".join(target.ours),
            " or ".join(target.against),
            f"at least {times(target.least)}",
            times(best),
            "" if middle is None else times(middle),
            _verdict(best >= target.least),
        ]


def _floors(rounds: Sequence[Document]) -> Iterator[list[str]]:
    for workload, most in NEAR_FLOOR.items():
        target = Target(workload, ("floor",), OURS, most)
        floors = [ratio(rounds, target, what) for what in ("best", "median")]
        if floors[0] is None or floors[1] is None:
            continue
        wanted, reached = f"at most {times(most)}", floors[0] <= most
        both = [times(value) for value in floors if value is not None]
        yield [f"{workload}, round", "fedveil", "floor", wanted, *both, _verdict(reached)]


def _large(growth: Sequence[Document]) -> Iterator[list[str]]:
    for step in growth:
        if (step["series"], step["size"]) != LARGE or "best" not in step:
            continue
        of, share = f"{step['series']} {step['size']:,}", step["peak_memory_mb"] / step["data_mb"]
        both = [seconds(step[what]) for what in ("best", "median")]
        slow, big = step["best"] > LARGE_SECONDS, share > LARGE_MEMORY
        most = f"at most {seconds(LARGE_SECONDS)}"
        yield [f"{of}, round", "fedveil", "", most, *both, _verdict(not slow)]
        most = f"at most {times(LARGE_MEMORY)}"
        yield [f"{of}, memory", "fedveil", "its data", most, times(share), "", _verdict(not big)]


def _growth(steps: Sequence[Document]) -> str:
    rows = [
        [
            step["series"],
            f"{step['size']:,}",
            seconds(step["best"]),
            seconds(step["median"]),
            f"{step['peak_memory_mb']:.0f} MB",
            f"{step['data_mb']:.0f} MB",
            step["configuration"],
        ]
        for step in steps
        if "best" in step
    ]
    return _table(["grows", "to", "best", "median", "memory", "of it data", "how"], rows)


def _parts(parts: dict[str, list[Document] | str]) -> str:
    text = ""
    for part, figures in parts.items():
        if isinstance(figures, str):
            text += f"{part}: not measured ({figures})\n\n"
            continue
        rows = [[figure["what"], _figure(figure)] for figure in figures]
        text += _table([part, ""], rows) + "\n"
    return text


def _figure(figure: Document) -> str:
    if "million_per_second" in figure:
        return f"{seconds(figure['seconds'])}, {figure['million_per_second']:.0f} M/s"
    if figure["unit"] == "s":
        return seconds(figure["value"])
    return f"{figure['value']:.2f} {figure['unit']}"
