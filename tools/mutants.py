"""Would the tests notice? Changes one operator at a time on the privacy path and runs the tests.

    make mutants                                   # covers the suite once, then a seeded sample
    .venv/bin/python tools/mutants.py --sample 200 --seed 7 --only privacy/ledger.py
    .venv/bin/python tools/mutants.py --show 12ab34cd   # the change of one mutant, as a diff

A mutant is *killed* if a test fails on it. Only the tests that execute the changed line are run
(by a coverage map of the whole suite), those of the nearest folder first. A mutant that behaves
like the original is *equivalent*: `equivalent_mutants.txt` lists each with the reason, and they
count neither way. Survivors are printed with the line, so that a test can be written.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedveil"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
COVERAGE = ROOT / ".mutants" / "coverage"
PRIVACY_PATH = (
    "client",
    "core",
    "data",
    "engines",
    "methods",
    "planning",
    "privacy",
    "run",
    "secagg",
)
LEFT_OUT: tuple[str, ...] = ()

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True)
class Mutant:
    """One change: the `place`-th change that is possible in a file."""

    file: Path
    place: int
    line: int
    what: str
    original: str
    copy: int = 0  # how often the same change of the same text came before in this file

    @property
    def key(self) -> str:
        """Stays the same while the text of the line does."""
        text = f"{self.file.relative_to(PACKAGE)}|{self.original}|{self.what}|{self.copy}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        where = f"{self.file.relative_to(ROOT)}:{self.line}"
        return f"{self.key} {where}: {self.what}: {self.original}"


def changes(tree: ast.Module) -> Iterator[tuple[int, str, ast.AST]]:
    """Every change of one node: its line, what it is, and the changed tree's root."""
    for node in list(ast.walk(tree)):
        for what, undo in _apply(node):
            yield getattr(node, "lineno", 0), what, tree
            undo()


def _apply(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Change a node in place, one way after the other; the caller undoes each."""

    def swap(owner: ast.AST, name: str, value: object) -> object:
        old = getattr(owner, name)
        setattr(owner, name, value)
        return lambda: setattr(owner, name, old)

    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        other = _COMPARISONS[type(node.ops[0])]
        name = f"{type(node.ops[0]).__name__} -> {other.__name__}"
        yield name, swap(node, "ops", [other(), *node.ops[1:]])
    if isinstance(node, ast.BoolOp):
        other = ast.And if isinstance(node.op, ast.Or) else ast.Or
        yield f"{type(node.op).__name__} -> {other.__name__}", swap(node, "op", other())
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            return
        other = _ARITHMETIC[type(node.op)]
        yield f"{type(node.op).__name__} -> {other.__name__}", swap(node, "op", other())
    if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        other = _ARITHMETIC[type(node.op)]
        yield f"{type(node.op).__name__}= -> {other.__name__}=", swap(node, "op", other())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        other = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        inner = node.operand
        if isinstance(node.op, ast.Not):  # not x -> not not x
            inner = ast.UnaryOp(ast.Not(), node.operand)
            yield "without not", swap(node, "operand", inner)
        else:
            yield "without minus", swap(node, "op", other)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield f"{node.value} -> {node.value + 1}", swap(node, "value", node.value + 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield f"{node.value} -> {not node.value}", swap(node, "value", not node.value)
    if isinstance(node, ast.Call):
        name = node.func
        if isinstance(name, ast.Name) and name.id in _CALLS:
            yield f"{name.id} -> {_CALLS[name.id]}", swap(name, "id", _CALLS[name.id])
        if isinstance(name, ast.Attribute) and name.attr in _CALLS:
            yield f".{name.attr} -> .{_CALLS[name.attr]}", swap(name, "attr", _CALLS[name.attr])
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        if isinstance(node, ast.If) and _type_checking(node):
            return
        yield "condition -> False", swap(node, "test", ast.Constant(False))
        if not isinstance(node, ast.While):
            yield "condition -> True", swap(node, "test", ast.Constant(True))
    for body in ("body", "orelse"):
        statements = getattr(node, body, None)
        if not isinstance(statements, list):
            continue
        for index, statement in enumerate(statements):
            call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            if call or isinstance(statement, ast.Raise):
                kind = "call" if call else "raise"
                rest = [*statements[:index], ast.Pass(), *statements[index + 1 :]]
                yield f"{kind} in line {statement.lineno} left out", swap(node, body, rest)


def _type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _parse(file: Path) -> ast.Module:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):  # annotations and docstrings change nothing that runs
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
            for argument in [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]:
                argument.annotation = None
    return tree


def mutants(file: Path) -> list[Mutant]:
    lines = file.read_text(encoding="utf-8").splitlines()
    found, seen = [], Counter[tuple[str, str]]()
    for place, (line, what, _) in enumerate(changes(_parse(file))):
        at = int(what.split()[3]) if "left out" in what else line
        what = what.replace(f" in line {at}", "")
        text = lines[at - 1].strip() if at else ""
        found.append(Mutant(file, place, at, what, text, seen[text, what]))
        seen[text, what] += 1
    return found


def source_of(mutant: Mutant) -> str:
    for place, (_, _, tree) in enumerate(changes(_parse(mutant.file))):
        if place == mutant.place:
            return ast.unparse(ast.fix_missing_locations(copy.deepcopy(tree)))
    raise ValueError(f"no mutant {mutant}")


def all_mutants(only: str | None) -> list[Mutant]:
    files = []
    for part in PRIVACY_PATH:
        path = PACKAGE / part
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    found = []
    for file in files:
        name = str(file.relative_to(PACKAGE))
        if name.startswith(LEFT_OUT) or (only and not name.startswith(only)):
            continue
        found += mutants(file)
    return found


def cover() -> None:
    """Which test executes which line: the whole suite, once."""
    COVERAGE.parent.mkdir(exist_ok=True)
    settings = COVERAGE.parent / "coveragerc"
    settings.write_text(
        f"[run]\nsource = {PACKAGE}\ndata_file = {COVERAGE}\ndynamic_context = test_function\n"
        "parallel = false\n",
        encoding="utf-8",
    )
    collect = [f"--cov={PACKAGE}", "--cov-context=test", f"--cov-config={settings}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", *collect, "--cov-report="],
        cwd=ROOT,
        env=_environment(ROOT / "src"),
        check=False,
    )


def tests_of(mutant: Mutant, limit: int) -> list[str]:
    """Tests that execute the line, those named like its folder or file first."""
    from coverage import CoverageData

    data = CoverageData(str(COVERAGE))
    data.read()
    names: set[str] = set()
    for context in data.contexts_by_lineno(str(mutant.file)).get(mutant.line, []):
        name = context.split("|")[0]
        if name:
            names.add(name)
    near = mutant.file.parent.name, mutant.file.stem
    ranked = sorted(names, key=lambda name: (-sum(part in name for part in near), name))
    # One test of each function is enough at first; its other parameters follow.
    seen: dict[str, int] = {}
    order = []
    for name in ranked:
        function = name.split("[")[0]
        seen[function] = seen.get(function, 0) + 1
        order.append((seen[function] > 2, name))
    return [name for _, name in sorted(order, key=lambda pair: pair[0])][:limit]


def _environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}


def killed(mutant: Mutant, limit: int, seconds: float) -> str:
    """What killed the mutant, or an empty string."""
    tests = tests_of(mutant, limit)
    if not tests:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        changed = source / mutant.file.relative_to(ROOT / "src")
        changed.write_text(source_of(mutant), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=_environment(source),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "time limit"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:100] if failed else f"exit code {done.returncode}"


def equivalent() -> dict[str, str]:
    if not EQUIVALENT.exists():
        return {}
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line.strip() and line[0] != "#"]
    return {pair[0]: pair[1] for pair in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="files under src/fedveil that start with this")
    parser.add_argument("--cover", action="store_true", help="make the coverage map again")
    parser.add_argument("--tests", type=int, default=400, help="at most so many tests a mutant")
    parser.add_argument("--seconds", type=float, default=900, help="time limit of a mutant")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--show", help="print one mutant as a diff")
    options = parser.parse_args()
    found = all_mutants(options.only)
    if options.show:
        for mutant in (one for one in found if one.key == options.show):
            plain = ast.unparse(_parse(mutant.file)).splitlines()
            print("\n".join(difflib.unified_diff(plain, source_of(mutant).splitlines(), n=2)))
        return 0
    if options.cover or not COVERAGE.exists():
        cover()
    known = equivalent()
    sample = random.Random(options.seed).sample(found, min(options.sample, len(found)))
    began, survivors, count, skipped = time.monotonic(), [], 0, 0
    with ThreadPoolExecutor(options.processes) as pool:
        waiting = []
        for mutant in sample:
            if mutant.key in known:
                skipped += 1
                continue
            task = pool.submit(killed, mutant, options.tests, options.seconds)
            waiting.append((mutant, task))
        for mutant, task in waiting:
            how = task.result()
            count += 1
            if not how:
                survivors.append(mutant)
            print(f"{'killed  ' if how else 'SURVIVED'} {mutant}  {how}", flush=True)
    killed_count = count - len(survivors)
    print(
        f"\n{killed_count} of {count} killed ({100 * killed_count / max(1, count):.1f} %), "
        f"{skipped} equivalent left out, {len(found)} possible, seed {options.seed}, "
        f"{time.monotonic() - began:.0f} s"
    )
    for mutant in survivors:
        print(f"  {mutant}")
    return int(killed_count < 0.95 * count)


if __name__ == "__main__":
    sys.exit(main())
