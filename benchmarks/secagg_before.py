"""A whole round now and at an earlier commit: `python -m benchmarks.secagg_before [COMMIT]`.

Both trees play the round of their own `benchmarks/secagg.py`, in turns, each in one process that
holds all devices: 1000 devices x 100 k parameters, 5 % lost, terms for 5 % colluders and 10 %
losses. CPU seconds; in the first round pairs agree on their seeds. By default the commit is the one
before devices drew graphs (wire format 1), whose time the goal was set by.
"""

from __future__ import annotations

import argparse

from benchmarks.before import ROOT, child, seconds, tree_at

BEFORE = "6d1c6ac^"
CHILD = """
import sys, time
from benchmarks import secagg as tree
count, dimension = map(int, sys.argv[1:])
mode = tree.SecureMode.MASKED if hasattr(tree, "SecureMode") else tree.Mode.FULL
if hasattr(tree, "sparse_terms"):
    terms = tree.sparse_terms(count)
else:
    terms = tree.Terms("bench", min_honest=count // 2, colluders=count // 20, max_dropout=0.1)
simulation = tree.Simulation(terms, mode)
for number, _ in enumerate(sys.stdin):
    start = time.process_time()
    tree._round(simulation, number, count, dimension, 0.05)
    print(time.process_time() - start, flush=True)
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default=BEFORE)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    with tree_at(asked.commit) as tree:
        size = (asked.devices, asked.dimension)
        with child(tree, CHILD, *size) as before, child(ROOT, CHILD, *size) as now:
            for number in range(asked.rounds):
                old, new = seconds(before), seconds(now)
                print(
                    f"round {number}, {size[0]} devices x {size[1]}: {asked.commit} {old:.2f} s, "
                    f"now {new:.2f} s, {old / new:.1f}x",
                    flush=True,
                )


if __name__ == "__main__":
    main()
