"""Command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from benchmarks.measure import Document, Effort, measure, summarise
from benchmarks.systems import SYSTEMS
from benchmarks.workloads import WORKLOADS

ONE_PROCESS = ("fedveil", "fedveil:protected", "opacus")
QUICK = Effort(seconds=1.0, least=2, most=200)


def main() -> int:
    args = arguments()
    effort = QUICK if args.quick else Effort()
    if args.processor:
        return in_turns(args.workload or list(WORKLOADS), effort, args.passes or 3)
    if args.system is None:
        from benchmarks.suite import everything

        names = args.workload or ([] if args.parts else list(WORKLOADS))
        return everything(names, effort, args.quick, args.passes, args.update, args.parts)
    if not args.workload:
        sys.exit("name a workload to measure one system alone, for example W1")
    failed = False
    for name in args.workload:
        runs = [measure(WORKLOADS[name], args.system, effort) for _ in range(args.passes or 1)]
        document = summarise(runs)
        failed |= "failed" in document
        print(json.dumps(document) if args.json else line(document))
    return int(failed)


def in_turns(names: list[str], effort: Effort, passes: int) -> int:
    """Print processor seconds of systems that run in one process, measured in turns."""
    from benchmarks.suite import SUITE

    effort = replace(effort, processor=True)
    for name in names:
        systems = [one for one in SUITE[name] if one in ONE_PROCESS]
        runs: dict[str, list[Document]] = {system: [] for system in systems}
        for _ in range(passes):
            for system, own in runs.items():
                own.append(measure(WORKLOADS[name], system, effort))
        for own in runs.values():
            print(line(summarise(own)), flush=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Without --system: everything, interleaved, into benchmarks/results.md.",
    )
    parser.add_argument("workload", nargs="*", help=", ".join(WORKLOADS))
    parser.add_argument("--system", choices=SYSTEMS, help="measure this one alone")
    parser.add_argument("--passes", type=int, help="how often to run each (everything: 3)")
    parser.add_argument("--quick", action="store_true", help="a few minutes in all")
    parser.add_argument(
        "--processor",
        action="store_true",
        help="print processor time, of one process with one thread each: for a busy machine",
    )
    parser.add_argument("--parts", action="store_true", help="the parts as well, or alone")
    parser.add_argument("--update", action="store_true", help="measure workloads of it again")
    parser.add_argument("--json", action="store_true", help="one document a line on stdout")
    args = parser.parse_args()
    unknown = [name for name in args.workload if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    return args


def line(document: dict[str, object]) -> str:
    name = f"{document['workload']:6} {document['system']:20}"
    for trouble in ("skipped", "failed"):
        if trouble in document:
            return f"{name} {trouble}: {document[trouble]}"
    return (
        f"{name} best {document['best']:.5f} s, median {document['median']:.5f} s of "
        f"{document['rounds']} rounds; start {document['start_seconds']:.1f} s; "
        f"{document['peak_memory_mb']:.0f} MB; {document['configuration']}"
    )


if __name__ == "__main__":
    sys.exit(main())
