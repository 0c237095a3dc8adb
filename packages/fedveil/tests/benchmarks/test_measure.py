"""Rounds are counted, pooled and compared as promised."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.clock import Clock, Span
from benchmarks.measure import Effort, descendants, measure, summarise, tree_memory_mb
from benchmarks.workloads import WORKLOADS

pytestmark = pytest.mark.slow  # of the benchmarks, which no user runs

TINY = replace(WORKLOADS["W2"], clients=4, cohort=4)


def laps_until_enough(span: Span, pause: float) -> Clock:
    clock = Clock(span)
    while not clock.enough:
        time.sleep(pause)
        clock.lap()
    return clock


def test_warm_up_rounds_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("benchmarks.clock.time.perf_counter", lambda: now)
    clock = Clock(Span(time.time(), warm_up=2, seconds=0, least=2, most=2))
    for seconds in (50.0, 40.0, 3.0, 2.0):
        assert not clock.enough
        now += seconds
        clock.lap()
    assert clock.enough
    assert clock.laps == [3.0, 2.0]


def test_slow_rounds_stop_at_the_least_and_fast_ones_at_the_most() -> None:
    slow = laps_until_enough(Span(time.time(), 1, seconds=0.001, least=3, most=50), 0.005)
    fast = laps_until_enough(Span(time.time(), 1, seconds=1e9, least=3, most=7), 0.0)
    assert (len(slow.laps), len(fast.laps)) == (3, 7)


def test_start_runs_from_the_request_to_the_first_round() -> None:
    clock = Clock(Span(time.time() - 5, warm_up=1, seconds=0, least=1, most=1))
    clock.lap()
    assert 5 <= clock.start_seconds < 60


def run(laps: list[float], start: float = 1.0) -> dict[str, object]:
    return {
        "workload": "W1",
        "system": "fedveil",
        "laps": laps,
        "start_seconds": start,
        "peak_memory_mb": 100.0 * start,
    }


def test_passes_are_pooled_over_all_rounds() -> None:
    summary = summarise([run([4.0, 1.0], 1.0), run([2.0, 3.0, 9.0], 3.0)])
    assert summary["best"] == 1.0
    assert summary["median"] == summary["seconds_per_round"] == 3.0
    assert summary["rounds"] == 5
    assert summary["start_seconds"] == 2.0
    assert summary["peak_memory_mb"] == 300.0


def test_a_pass_that_failed_does_not_hide_those_that_did_not() -> None:
    failed = {"workload": "W1", "system": "fedveil", "failed": "killed"}
    assert summarise([failed, run([1.0])])["rounds"] == 1
    assert summarise([failed])["failed"] == "killed"


def hold(megabytes: int, ready: Event, done: Event) -> None:
    block = bytearray(os.urandom(1024)) * (megabytes * 1024)
    ready.set()
    done.wait()
    del block


def test_memory_of_children_counts() -> None:
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    before = tree_memory_mb(os.getpid())
    child = context.Process(target=hold, args=(200, ready, done))
    child.start()
    try:
        ready.wait()
        assert child.pid in descendants(os.getpid())
        assert tree_memory_mb(os.getpid()) - before > 190
    finally:
        done.set()
        child.join()


def test_one_measurement_alone_gives_rounds_start_and_memory() -> None:
    document = summarise([measure(TINY, "fedveil", Effort(seconds=0.01, least=3, most=5))])
    assert 3 <= document["rounds"] <= 5
    assert 0 < document["best"] <= document["seconds_per_round"] < document["start_seconds"]
    assert document["peak_memory_mb"] > 50


def test_a_system_that_takes_too_long_is_ended_and_reported() -> None:
    document = measure(TINY, "fedveil", Effort(timeout=0.2))
    assert "failed" in document
    mine = [Path(f"/proc/{child}/cmdline") for child in descendants(os.getpid())]
    assert not any("benchmarks.runner" in path.read_text() for path in mine if path.exists())


def results() -> list[dict[str, object]]:
    def system(name: str, best: float, median: float) -> dict[str, object]:
        return {
            "workload": "W1",
            "system": name,
            "best": best,
            "median": median,
            "start_seconds": 10 * best,
            "peak_memory_mb": 1.0,
            "configuration": "",
        }

    return [
        system("fedveil", 0.01, 0.02),
        system("fedveil:mlp", 0.03, 0.03),
        system("pfl", 0.5, 0.6),
        system("pfl:threads", 0.3, 0.9),
        {"workload": "W1", "system": "flower", "skipped": "why not"},
    ]


def test_a_target_compares_with_the_fastest_configuration_of_a_peer() -> None:
    target = report.Target("W1", ("fedveil",), report.PFL, 25)
    assert report.ratio(results(), target, "best") == pytest.approx(30)
    flower = report.Target("W1", ("fedveil",), ("flower",), 25)
    assert report.ratio(results(), flower, "best") is None
