"""Would the tests notice? Changes one operator at a time on the privacy path and runs the tests.

    make mutants                                   # covers the suite once, then a seeded sample
    .venv/bin/python tools/mutants.py --sample 200 --seed 7 --only privacy/ledger.py
    .venv/bin/python tools/mutants.py --show 12ab34cd   # the change of one mutant, as a diff
    .venv/bin/python tools/mutants.py --run 12ab34cd    # its tests alone
    .venv/bin/python tools/mutants.py --cover tests/engine/test_run.py   # after writing a test

A mutant is *killed* if a test fails on it or takes far longer than usual. Only the tests that
execute the changed statement are run (by a coverage map of the whole suite), the nearest first; no
test, no kill. A mutant that behaves like the original is *equivalent*: `equivalent_mutants.txt`
lists each with the reason, and they count neither way.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from covering import ROOT, SOURCES, Covering, cover, environment, name_of

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
_CORE = ROOT / "packages" / "fedveil" / "src" / "fedveil"
_PARTS = ("core", "data", "methods", "planning", "privacy", "run", "training")
PRIVACY_PATH = (
    *(_CORE / part for part in _PARTS),
    ROOT / "packages" / "fedveil-federation" / "src" / "fedveil_federation" / "secagg",
)
WANTED = 0.95  # share of the mutants that must be killed

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitXor: ast.BitAnd,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}

# Processes that have imported what takes long, all but the package itself.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["torch.distributed", "scipy.stats", "sklearn.datasets", "pyarrow.parquet", "dp_accounting"]
)

_Change = tuple[str, int, Callable[[], None]]  # what, its line, and how to undo it


@dataclass(frozen=True)
class Mutant:
    """One change: the `place`-th change that is possible in a file."""

    file: Path
    place: int
    line: int
    statement: range  # its lines, without those of its body
    on_import: bool  # it runs once, when the module is imported
    function: str
    what: str
    original: str
    copy: int  # how often the same change of the same text came before in the function

    @property
    def key(self) -> str:
        """Stays the same while function and line do, wherever the file is moved."""
        text = f"{self.function}|{self.original}|{self.what}|{self.copy}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __str__(self) -> str:
        where = f"{'/'.join(name_of(self.file))}:{self.line}"
        return f"{self.key} {where}: {self.what}: {self.original}"


def _changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int]]:
    """Every change of one node: the node, what it is, and its line. The tree is changed by it."""
    passive = {id(inner) for node in ast.walk(tree) for inner in _passive(node)}
    for node in list(ast.walk(tree)):
        if id(node) in passive:
            continue
        for what, line, undo in _apply(node):
            yield node, what, line
            undo()


def _passive(node: ast.AST) -> Iterator[ast.AST]:
    """What changes nothing that runs: annotations, how a dataclass is declared, and the `strict`
    of a `zip`, which asserts what holds."""
    parts: list[ast.AST | None] = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        parts = [node.returns]
    elif isinstance(node, (ast.arg, ast.AnnAssign)):
        parts = [node.annotation]
    elif isinstance(node, ast.ClassDef):
        parts = [*node.decorator_list]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
        parts = [keyword.value for keyword in node.keywords]
    for part in parts:
        if part is not None:
            yield from ast.walk(part)


def _apply(node: ast.AST) -> Iterator[_Change]:
    """Change a node in place, one way after the other; the caller undoes each."""

    def swap(what: str, owner: ast.AST, name: str, value: object, line: int = 0) -> _Change:
        old = getattr(owner, name)
        setattr(owner, name, value)
        return what, line or getattr(node, "lineno", 0), lambda: setattr(owner, name, old)

    def renamed(old: object, new: type) -> str:
        return f"{type(old).__name__} -> {new.__name__}"

    if isinstance(node, ast.Compare):
        for index, comparison in enumerate(node.ops):
            other = _COMPARISONS[type(comparison)]
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield swap(renamed(comparison, other), node, "ops", ops)
    if isinstance(node, ast.BoolOp):
        joint = ast.And if isinstance(node.op, ast.Or) else ast.Or
        yield swap(renamed(node.op, joint), node, "op", joint())
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC:
        operator = _ARITHMETIC[type(node.op)]
        yield swap(renamed(node.op, operator), node, "op", operator())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield swap("without not", node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield swap("without minus", node, "op", ast.UAdd())
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        yield swap(f"{node.value} -> {value}", node, "value", value)
    if isinstance(node, ast.Call):
        function, name = node.func, "id" if isinstance(node.func, ast.Name) else "attr"
        old = getattr(function, name, "")
        if old in _CALLS:
            yield swap(f"{old} -> {_CALLS[old]}", function, name, _CALLS[old])
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        yield swap("condition -> False", node, "test", ast.Constant(False))
        if not isinstance(node, ast.While):
            yield swap("condition -> True", node, "test", ast.Constant(True))
    for body in ("body", "orelse", "finalbody"):
        statements = getattr(node, body, ())
        if not isinstance(statements, list):  # that of a lambda is an expression
            continue
        for index, statement in enumerate(statements):
            call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            if call or isinstance(statement, ast.Raise):
                rest = [*statements[:index], ast.Pass(), *statements[index + 1 :]]
                what = f"{'call' if call else 'raise'} left out"
                yield swap(what, node, body, rest, statement.lineno)


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def mutants(file: Path) -> list[Mutant]:
    lines = file.read_text(encoding="utf-8").splitlines()
    tree = _parse(file)
    functions, later = _functions(tree), _later(tree)
    statements = {line: span for span in _statements(tree) for line in span}
    found, seen = [], Counter[tuple[str, str, str]]()
    for place, (_, what, line) in enumerate(_changes(tree)):
        text, function = lines[line - 1].strip(), functions.get(line, "")
        span = statements.get(line, range(line, line + 1))
        number = seen[function, text, what]
        first = line not in later
        found.append(Mutant(file, place, line, span, first, function, what, text, number))
        seen[function, text, what] += 1
    return found


def _functions(tree: ast.AST, above: str = "") -> dict[int, str]:
    """The qualified name of the innermost function or class of each line."""
    names: dict[int, str] = {}
    for node in ast.iter_child_nodes(tree):
        name = above
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{above}.{node.name}".lstrip(".")
            names |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), name)
        names |= _functions(node, name)
    return names


def _later(tree: ast.AST) -> set[int]:
    """The lines of all functions' bodies."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    }


def _statements(tree: ast.Module) -> Iterator[range]:
    """The lines of each statement without its body; inner ones after those around them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = node.end_lineno or node.lineno
            end = max(node.lineno + 1, body[0].lineno) if body else last + 1
            yield range(node.lineno, end)


def source_of(mutant: Mutant) -> str:
    tree = _parse(mutant.file)
    for place, _ in enumerate(_changes(tree)):
        if place == mutant.place:
            return ast.unparse(ast.fix_missing_locations(copy.deepcopy(tree)))
    raise ValueError(f"no mutant {mutant}")


def all_mutants() -> list[Mutant]:
    found: list[Mutant] = []
    for path in PRIVACY_PATH:
        if not path.exists():
            sys.exit(f"{path}: no such part of the privacy path")
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            found += mutants(file)
    return found


def chosen(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """A sample that stays mostly the same when some lines change."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed}|{mutant.key}".encode()).digest()

    return sorted(found, key=rank)[:count]


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    status: str  # killed, survived, equivalent
    how: str  # the test that failed, or why none could
    seconds: float = 0.0


def judge(mutant: Mutant, covering: Covering, budget: float) -> Result:
    """Run the mutant's tests, up to `budget` seconds of their usual time, until one fails."""
    tests: list[str] = []
    usual = 0.0
    for name in covering.tests(mutant.file, mutant.statement, mutant.on_import):
        usual += covering.seconds[name]
        if tests and usual > budget:
            break
        tests.append(name)
    if not tests:
        return Result(mutant, "survived", "no test runs this line")
    began = time.monotonic()
    how = _first_failure(mutant, tests, 60 + 5 * sum(covering.seconds[name] for name in tests))
    status, how = ("killed", how) if how else ("survived", f"{len(tests)} tests pass")
    return Result(mutant, status, how, time.monotonic() - began)


def _first_failure(mutant: Mutant, tests: list[str], seconds: float) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source in SOURCES:
            kept = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / source.relative_to(ROOT), ignore=kept)
        changed = folder / mutant.file.relative_to(ROOT)
        changed.write_text(source_of(mutant), encoding="utf-8")
        code, output = _outcome(folder, tests, seconds)
        if code == pytest.ExitCode.USAGE_ERROR:  # other parameters, under other names: run them all
            functions = [test.partition("[")[0] for test in tests]
            code, output = _outcome(folder, list(dict.fromkeys(functions)), seconds)
    if not code:
        return "time limit" if code is None else ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition(" - ")[0] if failed else f"exit code {code}"


def _outcome(folder: Path, tests: list[str], seconds: float) -> tuple[int | None, str]:
    """The exit code of the tests, None if they take too long, and what they print."""
    process = _FORKS.Process(target=_pytest, args=(folder, tests, seconds))
    process.start()
    # Loops end by the limit on CPU time; what hangs has longer the busier the machine is.
    process.join(seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    code = None if process.exitcode == -signal.SIGXCPU else process.exitcode
    with suppress(ProcessLookupError):  # also what the tests have started and not ended
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return code, (folder / "output").read_text(encoding="utf-8", errors="replace")


def _pytest(folder: Path, tests: list[str], seconds: float) -> None:
    """In a process of its own: the tests with the changed package, until one fails."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sources = [folder / source.relative_to(ROOT) for source in SOURCES]
    os.environ |= environment(*sources)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "examples")
    sys.path[:0] = map(str, sources)
    os.chdir(ROOT)
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    sys.exit(pytest.main([*options, f"--basetemp={folder}/tests", *tests]))


def equivalent(found: list[Mutant]) -> dict[str, str]:
    """Reasons by key; each line is a key and a reason. A key stands for one mutant."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    known = dict(line.split(maxsplit=1) for line in lines if line.strip() and line[0] != "#")
    count = Counter(mutant.key for mutant in found)
    for key in known:
        if count[key] != 1:
            sys.exit(f"{EQUIVALENT}: {key} stands for {count[key]} mutants; leave it out")
    return known


def table(results: list[Result]) -> str:
    """Killed, survived and equivalent by folder."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        folder = "/".join(name_of(result.mutant.file)[:2])
        for name in (folder, "together"):
            counts.setdefault(name, Counter())[result.status] += 1
    lines = ["folder       killed  survived  equivalent  killed of those that differ"]
    for folder in sorted(counts, key=lambda name: (name == "together", name)):
        row = counts[folder]
        counted = row["killed"] + row["survived"]
        share = f"{row['killed'] / counted:.1%}" if counted else "-"
        lines.append(
            f"{folder:12} {row['killed']:6}  {row['survived']:8}  {row['equivalent']:10}  {share}"
        )
    return "\n".join(lines)


def document(results: list[Result], options: argparse.Namespace, possible: int) -> str:
    statuses = Counter(result.status for result in results)
    rows = [
        {
            "key": result.mutant.key,
            "file": "/".join(name_of(result.mutant.file)),
            "line": result.mutant.line,
            "change": result.mutant.what,
            "text": result.mutant.original,
            "status": result.status,
            "how": result.how,
            "seconds": round(result.seconds, 1),
        }
        for result in results
    ]
    head = {"seed": options.seed, "sample": options.sample, "possible": possible, **statuses}
    return json.dumps({**head, "mutants": rows}, indent=1) + "\n"


def run(sample: list[Mutant], known: dict[str, str], options: argparse.Namespace) -> list[Result]:
    covering = Covering()
    os.environ["OMP_NUM_THREADS"] = "1"  # before the first process imports anything
    results = [Result(one, "equivalent", known[one.key]) for one in sample if one.key in known]
    with ThreadPoolExecutor(options.processes) as pool:
        tasks = [
            pool.submit(judge, one, covering, options.budget)
            for one in sample
            if one.key not in known
        ]
        for number, task in enumerate(as_completed(tasks), 1):
            result = task.result()
            results.append(result)
            status = f"{result.status:8}" if result.status == "killed" else "SURVIVED"
            print(
                f"[{number}/{len(tasks)}] {status} {result.mutant}  ({result.how}, "
                f"{result.seconds:.0f} s)",
                flush=True,
            )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="modules that start with this, as fedveil/privacy"
    )
    parser.add_argument("--cover", nargs="*", help="map the whole suite again, or add these tests")
    parser.add_argument("--budget", type=float, default=120, help="usual seconds of tests a mutant")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write every result to this file")
    parser.add_argument("--list", action="store_true", help="print the sample and stop")
    parser.add_argument("--run", nargs="+", help="these mutants instead of a sample")
    parser.add_argument("--show", nargs="+", help="print mutants as diffs")
    options = parser.parse_args()
    everything = all_mutants()
    found = [one for one in everything if "/".join(name_of(one.file)).startswith(options.only)]
    if options.show:
        for mutant in (one for one in found if one.key in options.show):
            plain = ast.unparse(_parse(mutant.file)).splitlines()
            diff = difflib.unified_diff(plain, source_of(mutant).splitlines(), n=2, lineterm="")
            print(mutant, *list(diff)[2:], sep="\n")
        return 0
    sample = chosen(found, options.sample, options.seed)
    if options.run:
        sample = [one for one in found if one.key in options.run]
    if options.list:
        print(*sample, sep="\n")
        return 0
    known = equivalent(everything)
    if options.cover is not None:
        cover(options.cover)
    began = time.monotonic()
    results = run(sample, known, options)
    survivors = [result for result in results if result.status == "survived"]
    killed = sum(result.status == "killed" for result in results)
    print(f"\n{table(results)}\n")
    print(
        f"{killed} of {killed + len(survivors)} killed, seed {options.seed}, "
        f"{len(found)} possible, {time.monotonic() - began:.0f} s"
    )
    for result in survivors:
        print(f"  {result.mutant}  ({result.how})")
    if options.json:
        options.json.write_text(document(results, options, len(found)), encoding="utf-8")
    return int(killed < WANTED * (killed + len(survivors)))


if __name__ == "__main__":
    sys.exit(main())
