"""Several processes give what one gives, end with their leader, and say why one of them ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.paths import ROOT

from fedveil.data.federation import Examples, Federation
from fedveil.privacy.clipping import Clip
from fedveil.training.client.batches import step_counts
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import RoundRequest, threads_at
from fedveil.training.engines.processes import ProcessEngine, WorkerFailed, Workers, split
from fedveil.training.engines.shared_memory import bytes_to_copy, share

from .jobs import RULES, SIZES, make_job, start_of
from .sums import sum_of

ALL = np.arange(len(SIZES))
GRID = UpdatePipeline(Clip(0.2, 2), granularity=2.0**-20)


@pytest.fixture(scope="module")
def pair() -> Iterator[ProcessEngine]:
    """Two processes, each training one client at a time."""
    job = make_job("cnn", RULES["two epochs, weight decay"], UpdatePipeline(Clip(0.2, 2)))
    engine = build_engine(job, "sequential", processes=2)
    assert isinstance(engine, ProcessEngine)
    yield engine
    engine.close()


def alone(
    engine: ProcessEngine,
    cohort: np.ndarray,
    round_number: int,
    pipeline: UpdatePipeline | None = None,
):
    with threads_at(1):
        single = build_engine(engine.job, "sequential")
        return sum_of(single, RoundRequest(start_of(engine.job), cohort, round_number, pipeline))


def alone_from(engine: ProcessEngine, start: torch.Tensor):
    with threads_at(1):
        return sum_of(build_engine(engine.job, "sequential"), RoundRequest(start, ALL, 1, None))


@pytest.mark.parametrize("cohort", [[], [6], [0, 1, 2, 3, 4, 5, 6, 7], [7, 0, 5]], ids=str)
def test_two_processes_give_the_sum_and_the_statistics_of_one(
    pair: ProcessEngine, cohort: list[int]
) -> None:
    ids = np.array(cohort, dtype=np.int64)
    together = sum_of(pair, RoundRequest(start_of(pair.job), ids, 3))
    single = alone(pair, ids, 3)
    torch.testing.assert_close(together.total, single.total, rtol=1e-6, atol=1e-9)
    for name in ("norms", "shaped_norms", "losses", "rejected"):
        assert np.array_equal(getattr(together, name), getattr(single, name)), name


class Deaf:
    """A worker that does not end by itself."""

    stdin = None
    killed = False
    waited = 0.0

    def wait(self, timeout: float | None = None) -> None:
        if timeout is not None:
            self.waited += timeout
            raise subprocess.TimeoutExpired("worker", timeout)
        assert self.killed

    def kill(self) -> None:
        self.killed = True


def test_workers_that_do_not_end_are_killed_after_two_seconds() -> None:
    workers, deaf = object.__new__(Workers), [Deaf(), Deaf()]
    workers._processes, workers._logs, workers._pipes = deaf, [], []  # type: ignore[assignment]
    workers.close()
    for process in deaf:
        assert process.killed
        assert 0 <= process.waited <= 2


def test_clients_left_out_are_counted_once_wherever_they_train(
    pair: ProcessEngine,
) -> None:
    wild = start_of(pair.job) * 1e30  # nobody's update is finite
    assert (
        sum_of(pair, RoundRequest(wild, ALL, 1)).rejected
        == alone_from(pair, wild).rejected
        == len(ALL)
    )


def test_integer_sums_are_identical_for_any_number_of_processes(pair: ProcessEngine) -> None:
    together = sum_of(pair, RoundRequest(start_of(pair.job), ALL, 1, GRID))
    assert together.total.dtype == torch.int64
    assert torch.equal(together.total, alone(pair, ALL, 1, GRID).total)


def test_a_dead_worker_is_reported_in_one_line_and_replaced(pair: ProcessEngine) -> None:
    start = start_of(pair.job)
    before = sum_of(pair, RoundRequest(start, ALL, 2))
    victim = pair.worker_pids[0]
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(WorkerFailed) as failure:
        sum_of(pair, RoundRequest(start, ALL, 2))
    assert str(victim) in str(failure.value)
    assert "SIGKILL" in str(failure.value)
    assert "\n" not in str(failure.value)
    after = sum_of(pair, RoundRequest(start, ALL, 2))
    assert torch.equal(before.total, after.total)
    assert victim not in pair.worker_pids


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    job = make_job("mlp", RULES["momentum"], UpdatePipeline())
    saved = job.federation.save(tmp_path / "data")
    mapped = replace(job, federation=Federation.open(saved))
    engine = build_engine(mapped, "mlp", processes=2)
    for file in saved.glob("*.npy"):
        file.unlink()
    with pytest.raises(WorkerFailed, match="FileNotFoundError"):
        sum_of(engine, RoundRequest(start_of(job), ALL, 0))
    engine.close()


LEADER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may have it ignored
sys.path.insert(0, {root!r})
from tests.engines.test_processes import ALL, make_job, RULES, UpdatePipeline, start_of
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import RoundRequest
from tests.engines.sums import sum_of
job = make_job("mlp", RULES["momentum"], UpdatePipeline())
engine = build_engine(job, "mlp", processes=2)
sum_of(engine, RoundRequest(start_of(job), ALL, 0))
print(*engine.worker_pids, flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_leader(blow: signal.Signals) -> None:
    root = str(ROOT)
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER.format(root=root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert leader.stdout is not None
    workers = [int(word) for word in leader.stdout.readline().split()]
    assert workers
    assert all(_lives(pid) for pid in workers)
    leader.send_signal(blow)
    leader.wait()
    leader.stdout.close()
    while any(_lives(pid) for pid in workers):  # for ever, if one does outlive it
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60).map(tuple),
    st.integers(1, 5),
    st.sampled_from(["momentum", "full batch, one step", "drop last"]),
)
def test_parts_are_even_up_to_one_client(sizes: tuple[int, ...], parts: int, rule: str) -> None:
    job = make_job("linear", RULES[rule], UpdatePipeline(), sizes)
    owners = split(job, np.arange(len(sizes)), parts)
    batch = RULES[rule].batch_size
    held = np.array(sizes)
    costs = (
        step_counts(held, RULES[rule]) * (held if batch is None else np.minimum(held, batch)) + 1
    )
    loads = np.bincount(owners, weights=costs, minlength=parts)
    assert len(loads) == parts
    assert loads.max() - loads.min() <= costs.max()


def test_large_cohorts_are_dealt_evenly() -> None:
    sizes = tuple(np.random.default_rng(0).integers(1, 30, 3000).tolist())
    job = make_job("linear", RULES["momentum"], UpdatePipeline(), sizes)
    owners = split(job, np.arange(3000), 4)
    loads = np.bincount(owners, weights=np.array(sizes))
    assert loads.max() / loads.min() < 1.01


def test_shared_columns_are_the_same_without_a_copy_of_files(tmp_path: Path) -> None:
    plain = make_job("softmax", RULES["momentum"], UpdatePipeline(), bytes_=True).federation
    mapped = Federation.open(plain.save(tmp_path / "data"))
    for federation, copied in ((plain, 3), (mapped, 1)):  # offsets are always in memory
        shared = share(federation)
        there = shared.open()
        assert (bytes_to_copy(federation) == 0) is (federation is mapped)
        assert len(shared.descriptors) <= copied
        for part in ("inputs", "targets"):
            wanted, got = getattr(federation.train, part), getattr(there.train, part)
            assert got.dtype == wanted.dtype
            assert np.array_equal(got, wanted)
            assert not got.flags.writeable
        assert np.array_equal(there.offsets, federation.offsets)
        assert np.array_equal(
            there.model_inputs(there.train.inputs), federation.model_inputs(federation.train.inputs)
        )
        shared.close()


def test_what_was_changed_in_a_private_map_is_what_others_see(tmp_path: Path) -> None:
    """Records that were blanked in a copy-on-write map are still in its file: no worker may read
    them there."""
    plain = make_job("softmax", RULES["momentum"], UpdatePipeline()).federation
    np.save(tmp_path / "inputs.npy", plain.train.inputs)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="c")
    mapped[:7] = 0
    blanked = replace(plain, train=Examples(mapped, plain.train.targets))
    shared = share(blanked)
    assert np.array_equal(shared.open().train.inputs, blanked.train.inputs)
    assert bytes_to_copy(blanked) > 0
    shared.close()


@pytest.mark.slow
def test_torchrun_ends_with_the_same_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    recipe = ["--set", "model.name=cnn", "--set", "training.rounds=3", "--seed", "1", "--quiet"]
    launchers = {
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
        "alone": [sys.executable],
    }
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for name, launcher in launchers.items():
        command = [*launcher, "-m", "fedveil", "run", *recipe, "--output", str(tmp_path / name)]
        subprocess.run(command, check=True, env=environment, capture_output=True)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in launchers)
    for key, value in one.items():
        torch.testing.assert_close(value, other[key], rtol=1e-5, atol=1e-7)
