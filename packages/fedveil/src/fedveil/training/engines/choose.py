"""Which engine runs a job, and why."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Task
from fedveil.training.engines.affine import Stack, affine_stack
from fedveil.training.engines.affine_gradients import AffineGradients
from fedveil.training.engines.algebra import AlgebraEngine
from fedveil.training.engines.batched import CPU, RowEngine
from fedveil.training.engines.contract import Engine, Job, Within, threads_at
from fedveil.training.engines.cost import Prediction, Workload, cores, predict
from fedveil.training.engines.distributed_env import under_torchrun, why_not_elsewhere
from fedveil.training.engines.gradients import AutogradGradients, VmapGradients, why_not_vmap
from fedveil.training.engines.isolated import OneByOne, undisturbed
from fedveil.training.engines.moments import moments_apply
from fedveil.training.engines.pieces import in_pieces
from fedveil.training.engines.registry import OUTSIDE
from fedveil.training.engines.shared_memory import bytes_to_copy
from fedveil.training.engines.statistic import StatisticEngine

ENGINES = ("auto", "algebra", "mlp", "generic", "sequential", "processes")

_LARGE = 500_000  # parameters above which a chunk of clients no longer fits the cache
_CACHE = 6_000_000  # bytes of weights that stay in cache while a chunk trains
_LONG = 0.1  # seconds: shorter rounds stay in one process
_LONG_APART = 0.02  # the same for isolated clients, whose results do not depend on it
_QUICK = 0.002  # seconds: shorter steps of one client stay on one thread
_LARGE_STEP = 1.0  # seconds on one core: longer steps of one client use all threads as well,
_FEW_CORES = 4  # if these are not many (measured with two)
_COPY = 2_000_000_000  # bytes of data that are not copied just to be shared


@dataclass(frozen=True)
class Choice:
    """An engine, how many processes run it, and the reason, in one sentence."""

    name: str
    reason: str
    processes: int = 1
    threads: int | None = None  # of each process during a round; None: as torch is set


def supports(job: Job, name: str, device: torch.device = CPU) -> str | None:
    """Why the engine of this name cannot run the job, in one clause; None if it can."""
    if name not in ENGINES:
        if job.rule.per_person:
            return "it clips single records, and persons are protected"
        return OUTSIDE.find(name, "engine.name", ENGINES).why_not(job, device)
    if name == "algebra":
        return _why_not_algebra(job, device)
    if name == "mlp":
        stack = _stack(job)
        if isinstance(stack, str):
            return f"the model is not a stack of affine layers: {stack}"
        return None
    if name == "generic":
        return why_not_vmap(job)
    if name == "processes":
        if device.type != "cpu" and not under_torchrun():
            return "processes on GPUs are started by torchrun"
        return None if under_torchrun() else why_not_elsewhere(job)
    return None


def choose(
    job: Job,
    name: str = "auto",
    *,
    processes: int | None = None,
    workload: Workload | None = None,
    device: torch.device = CPU,
) -> Choice:
    """The fastest engine that can run this job, or the one asked for.

    `processes=None` leaves their number open: several if the workload is long enough to pay.
    """
    if processes is not None and processes < 1:
        raise ConfigError(f"engine.processes: must be at least 1, got {processes}")
    if job.rule.per_example and job.rule.batch_size is None:
        raise ConfigError(
            "training.batch_size: clipped examples are divided by it, so it must be set"
        )
    inner = _engine(job, "auto" if name == "processes" else name, device)
    if inner.name == "statistic":
        return Choice(inner.name, inner.reason)
    predicted = None
    if workload is not None:
        predicted = predict(job, workload)
    alone = inner.name == "algebra" or device.type != "cpu"
    count, why = _processes(job, name, processes, None if alone else predicted, device)
    quick = predicted is not None and _one_thread(inner.name, predicted)
    threads = 1 if count > 1 or quick or job.isolated else None
    apart = "; every client on its own" if job.isolated else ""
    return Choice(inner.name, f"{inner.reason}{why}{apart}", count, threads)


def build_engine(
    job: Job,
    choice: Choice | str = "auto",
    chunk: int | None = None,
    *,
    processes: int | None = None,
    device: torch.device = CPU,
    threads: int | None = None,
) -> Engine:
    """Make the chosen engine, or choose by name first.

    `chunk` is how many clients train together at most; `threads` how many each process uses.
    """
    if isinstance(choice, str):
        choice = choose(job, choice, processes=processes, device=device)
    if chunk is not None and chunk < 1:
        raise ConfigError(f"engine.chunk: must be at least 1, got {chunk}")
    if threads is not None and threads < 1:
        raise ConfigError(f"engine.threads: must be at least 1, got {threads}")
    threads = threads or choice.threads
    own = _build(job, choice.name, chunk, device)
    if job.isolated:
        threads = 1  # more would round differently
    if choice.processes > 1:
        from fedveil.training.engines.processes import ProcessEngine

        return ProcessEngine(job, own, choice.processes, chunk, threads or 1)
    if threads is None or isinstance(own, Within):
        return own
    return Within(own, partial(threads_at, threads))


def device_of(name: str | None) -> torch.device:
    """The device of this name, this process's own among several GPUs; None is the CPU."""
    try:
        device = torch.device(name or "cpu")
    except RuntimeError:
        raise ConfigError(f"engine.device: unknown device {name!r}; try cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"engine.device: {name!r} is not available on this machine; use cpu")
    if device.type == "cuda" and device.index is None and under_torchrun():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def _engine(job: Job, name: str, device: torch.device) -> Choice:
    """Which engine trains clients inside a process."""
    if job.pipeline.statistic is not None:
        return Choice("statistic", "clients send a statistic of their records; nobody trains")
    if name != "auto":
        obstacle = supports(job, name, device)
        if obstacle is not None:
            raise ConfigError(f"engine.name: {name!r} cannot run this: {obstacle}; try 'auto'")
        return Choice(name, "asked for")
    if supports(job, "algebra", device) is None:
        way = "moments" if moments_apply(job) else "coefficients of the examples"
        return Choice("algebra", f"a linear model: {way} stand for data and weights")
    if supports(job, "mlp", device) is None:
        return Choice("mlp", "affine layers: gradients of many clients by hand, as matrix products")
    heavy = (nn.modules.conv._ConvNd, nn.RNNBase, nn.modules.dropout._DropoutNd)
    for module in job.module.modules():
        if isinstance(module, heavy):
            kind = type(module).__name__
            return Choice("sequential", f"{kind} layers run best one client at a time")
    if job.layout.size > _LARGE:
        return Choice("sequential", f"{job.layout.size:,} parameters keep one client's cores busy")
    obstacle = supports(job, "generic", device)
    if obstacle is not None:
        return Choice("sequential", f"one client at a time, because {obstacle}")
    return Choice("generic", "a small model: many clients go through each operation together")


def _processes(
    job: Job, name: str, asked: int | None, predicted: Prediction | None, device: torch.device
) -> tuple[int, str]:
    """How many processes, and why. Without a prediction there is one, unless more were asked."""
    if under_torchrun():
        size = int(os.environ["WORLD_SIZE"])
        return size, f"; {size} processes, started by torchrun"
    if name == "processes" or (asked or 1) > 1:
        obstacle = supports(job, "processes", device) or _unknown_elsewhere(name)
        if obstacle is not None:
            raise ConfigError(f"engine.processes: cannot run this: {obstacle}")
        count = asked or max(2, cores())
        if count == 1:
            raise ConfigError(
                "engine.processes: 1 contradicts engine.name 'processes'; leave one out"
            )
        return count, f"; {count} processes, asked for"
    available = cores()
    if asked == 1 or predicted is None or available == 1:
        return 1, ""
    shortest = _LONG_APART if job.isolated else _LONG
    if predicted.seconds < shortest or predicted.saved(available) < 0:
        return 1, "; one process, because the run is short"
    large = predicted.step_seconds > _LARGE_STEP and available <= _FEW_CORES
    if large and not job.isolated:  # isolated clients have one thread each
        return 1, "; one process, because a single step keeps all threads busy"
    obstacle = why_not_elsewhere(job) or _unknown_elsewhere(name)
    if obstacle is not None:
        return 1, f"; one process, because {obstacle}"
    if bytes_to_copy(job.federation) > _COPY:
        return 1, "; one process, because so much data is not copied unasked"
    return (
        available,
        f"; {available} processes, because a round takes about {predicted.seconds:.1g} s on one",
    )


def _unknown_elsewhere(name: str) -> str | None:
    """Why other processes cannot find this engine; None if they can."""
    if name in ENGINES or OUTSIDE[name].module != "__main__":
        return None
    return f"engine {name!r} is defined in the main program; move it to a module"


def _one_thread(inner: str, predicted: Prediction) -> bool:
    """Short operations gain nothing from a second thread, and beside a busy neighbour they wait
    for it many times their own length."""
    if inner == "sequential":
        return predicted.step_seconds < _QUICK
    return predicted.seconds < _LONG


def _build(job: Job, name: str, chunk: int | None, device: torch.device) -> Engine:
    if name == "statistic":
        return StatisticEngine(job)
    stack = _stack(job) if name in ("algebra", "mlp") else ""
    if not job.isolated:
        return _together(job, name, chunk, device, stack)
    # Secret batches, and persons, go in pieces, client by client.
    together = job.rule.batch_rate is None and not job.rule.per_person
    if not isinstance(stack, str) and device.type == "cpu" and together:
        quick = partial(undisturbed, autograd=False)
        return Within(_together(job, name, chunk, device, stack), quick)

    def make(own: Job) -> Engine:
        return _together(own, name, 1, device, stack)

    return Within(OneByOne(job, name, make, device), undisturbed)


def _together(
    job: Job,
    name: str,
    chunk: int | None,
    device: torch.device,
    stack: Stack | str,
) -> Engine:
    """Make an engine that trains clients together, at most `chunk` of them."""
    if name not in ENGINES:
        return OUTSIDE[name].build(job, chunk, device)
    if name == "sequential":
        gradients = in_pieces(job, AutogradGradients(job, device), autograd=True)
        return RowEngine(name, job, gradients, 1, device, draws=True)
    if name == "generic":
        # Gradients of single examples take a batch as much.
        batch = (job.rule.batch_size or 1) if job.rule.per_example else 1
        most = chunk or _chunk(job, batch, 100)
        gradients = in_pieces(job, VmapGradients(job, device), autograd=True)
        return RowEngine(name, job, gradients, most, device, draws=True)
    if isinstance(stack, str):
        raise ConfigError(f"engine.name: {name!r} cannot run this: {stack}")
    kernel = AffineGradients(stack, job.federation.task, job.isolated)
    by_hand = in_pieces(job, kernel, autograd=False)
    rows = RowEngine("mlp", job, by_hand, chunk or _chunk(job, 1, 1000), device)
    return AlgebraEngine(job, stack[0], rows) if name == "algebra" else rows


def _why_not_algebra(job: Job, device: torch.device) -> str | None:
    stack = _stack(job)
    if isinstance(stack, str):
        return f"the model is not one affine layer: {stack}"
    if len(stack) > 1 or stack[0].activation != "none":
        return f"the model has {len(stack)} layers, or an activation after the last one"
    if device.type != "cpu":
        return "algebra runs on the CPU"
    if job.federation.task is Task.MULTI_LABEL:
        return "it predicts several labels"
    return None if job.rule.plain else "its local rule is more than plain SGD"


def _stack(job: Job) -> Stack | str:
    if job.rule.loss is not None:
        return "its loss is another than the task's own"
    return affine_stack(job.module, job.layout, job.federation)


def _chunk(job: Job, copies: int, most: int) -> int:
    return max(1, min(most, _CACHE // (4 * job.layout.size * copies)))
