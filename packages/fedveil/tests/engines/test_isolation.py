"""In isolated jobs a client's numbers are its own: the same bits, whoever else is there.

Every engine, rule and shaping: a client's integers in a federation of many are those that the same
client gives alone, beside others, in another order, at another place in memory, in other chunks and
in other processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import Tensor, nn

from fedveil.data.federation import Examples, Federation
from fedveil.privacy.clipping import Clip
from fedveil.training.client.ballot import Ballot
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import Block, UpdatePipeline
from fedveil.training.engines import batched, dual
from fedveil.training.engines.choose import ENGINES, build_engine, supports
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.engines.cost import operations
from fedveil.training.engines.dual import size_class
from fedveil.training.engines.processes import ProcessEngine, home_parts
from fedveil.training.models.flat import layout_of

from .jobs import DECAY, GRIDS, RULES, SLOW, make_job, start_of

EACH = [name for name in ENGINES if name not in ("auto", "processes")]
GRID = UpdatePipeline(Clip(0.2, 2), granularity=2.0**-24)
FIVE = (7, 1, 12, 5, 20)
OWN = 3  # the client that is watched
OTHER_SIZES = (9, 30, 1, 5, 64)
FEW = (
    "full batch, three steps, decaying",
    "two epochs, weight decay",
    "steps over several epochs",
    "momentum",
    "BLUR, momentum, decay",
    "whole gradient, decay, momentum, penalty",
    "per example, exact noise",
)
# Nobody can tell the labels of sixty records, and each step overshoots: errors grow.
CHAOS = LocalTraining(LearningRate(10.0), steps=100, batch_size=4)
COUNTED = LocalTraining(DECAY, epochs=2, batch_size=4)  # rates that count a client's own steps


def federation_of(job: Job, clients: Sequence[tuple[np.ndarray, np.ndarray]], pad: int = 0) -> Job:
    """The job on these clients' records; `pad` moves the columns in memory by so many bytes."""
    columns = []
    for column in zip(*clients, strict=True):
        joined = np.concatenate(column)
        memory = np.zeros(joined.nbytes + pad + 64, np.uint8)
        place = memory[pad : pad + joined.nbytes].view(joined.dtype).reshape(joined.shape)
        place[...] = joined
        columns.append(place)
    offsets = np.concatenate([[0], np.cumsum([len(x) for x, _ in clients])]).astype(np.int64)
    old = job.federation
    federation = Federation(
        Examples(*columns),
        offsets,
        Examples(columns[0][:1], columns[1][:1]),
        old.task,
        old.classes,
        scaling=old.scaling,
        verified=True,
    )
    return replace(job, federation=federation)


def records_of(job: Job) -> list[tuple[np.ndarray, np.ndarray]]:
    train, ends = job.federation.train, job.federation.offsets
    return [(train.inputs[a:b], train.targets[a:b]) for a, b in pairwise(ends)]


def nasty(column: np.ndarray, size: int) -> np.ndarray:
    """Other records: more or fewer of them, with values that poison whatever they touch."""
    rows = np.resize(column, (size, *column.shape[1:])).copy()
    if rows.dtype == np.float32:
        flat = rows.reshape(-1)
        flat[::5] = np.resize(np.array([np.nan, np.inf, 3e38, -1e-38], np.float32), len(flat[::5]))
    return rows


def neighbourhoods(job: Job) -> dict[str, tuple[Job, list[int]]]:
    """Jobs in which the watched client is the same, with cohorts; its number is the last there."""
    clients = records_of(job)
    own, before = clients[OWN], job.randomness.of_client
    others = [
        own if place == OWN else (nasty(x, size), np.resize(y, (size, *y.shape[1:])))
        for place, ((x, y), size) in enumerate(zip(clients, OTHER_SIZES, strict=True))
    ]
    size = len(own[0])
    alike = [own if place == OWN else (nasty(own[0], size), own[1]) for place in range(7)]
    # The client keeps its number in all that is drawn for it, wherever it stands.
    return {
        "alone": (replace(federation_of(job, [own]), randomness=before(OWN)), [0]),
        "nasty others": (federation_of(job, others), [1, 0, 2, OWN]),
        "nasty others of its size": (federation_of(job, alike), [4, 0, 6, 1, OWN]),
        "first": (replace(federation_of(job, [own, clients[2]], 36), randomness=before(OWN)), [0]),
        "moved in memory": (federation_of(job, clients, 4), [2, OWN]),
    }


def rows_of(job: Job, engine: str, cohort: list[int], chunk: int) -> tuple[list[Tensor], Block]:
    """Each client's integers, in the order of the cohort."""
    running, seen = build_engine(job, engine, chunk), dict[int, Tensor]()
    asked = RoundRequest(start_of(job), np.array(cohort), 2, None, rows=True)
    for block in running.updates(asked):
        seen.update(zip(block.places.tolist(), block.rows.clone(), strict=True))
    found = sum_of(running, asked)
    rows = [seen[place] for place in range(len(cohort))]
    assert torch.equal(found.total, sum(rows))
    return rows, found


def check(job: Job, engine: str) -> None:
    obstacle = supports(job, engine)
    if obstacle is not None:
        pytest.skip(obstacle)
    job = replace(job, isolated=True)
    rows, whole = rows_of(job, engine, list(range(len(FIVE))), 3)
    assert bool(rows[OWN].any())
    for name, (other, cohort) in neighbourhoods(job).items():
        found, beside = rows_of(other, engine, cohort, 1)
        assert torch.equal(found[-1], rows[OWN]), name
        assert torch.equal(beside.norms[-1], whole.norms[OWN]), name  # the tracked clip's bit


def job_of(
    model: str, rule: LocalTraining, pipeline: UpdatePipeline = GRID, bytes_: bool = False
) -> Job:
    return make_job(model, rule, pipeline, FIVE, bytes_)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", FEW)
@pytest.mark.parametrize("model", ["linear", "wide linear", "softmax", "wide softmax", "wide mlp"])
@pytest.mark.parametrize("engine", ["algebra", "mlp"])
def test_a_clients_integers_are_its_own_under_every_rule(
    engine: str, model: str, rule: str
) -> None:
    check(job_of(model, RULES[rule]), engine)


@pytest.mark.parametrize("rule", ["full batch, one step", "two epochs, weight decay"])
@pytest.mark.parametrize("model", ["linear", "wide linear", "wide softmax"])
@pytest.mark.parametrize("worth", [0, 300_000], ids=["Gram matrices kept", "computed anew"])
def test_a_clients_integers_are_the_same_in_any_cohort(
    model: str, rule: str, worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of equal and of close sizes share stacks of matrices: in any company."""
    monkeypatch.setattr(dual, "_WORTH", worth)
    sizes, draw = (20, 17, 5, 20, 33, 3, 16, 17, 200, 5, 18, 33), np.random.default_rng(7)
    job = replace(make_job(model, RULES[rule], GRID, sizes), isolated=True)
    alone = [rows_of(job, "algebra", [client], 1)[0][0] for client in range(len(sizes))]
    for _ in range(6):
        cohort = draw.permutation(len(sizes))[: draw.integers(2, len(sizes) + 1)].tolist()
        for client, row in zip(cohort, rows_of(job, "algebra", cohort, 3)[0], strict=True):
            assert torch.equal(row, alone[client]), (client, cohort)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", ["two epochs, weight decay", "per example, exact noise"])
@pytest.mark.parametrize("model", ["tanh mlp", "own module", *SLOW])
@pytest.mark.parametrize("engine", ["mlp", "generic", "sequential"])
def test_a_clients_integers_are_its_own_in_every_network(
    engine: str, model: str, rule: str
) -> None:
    check(job_of(model, RULES[rule]), engine)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pipeline", GRIDS)
@pytest.mark.parametrize("model", ["linear", "wide softmax", "mlp", "own module"])
@pytest.mark.parametrize("engine", EACH)
def test_a_clients_integers_are_its_own_in_every_shape(
    engine: str, model: str, pipeline: str
) -> None:
    few = {
        "linear": "full batch, three steps, decaying",
        "wide softmax": "two epochs, weight decay",
    }
    check(job_of(model, RULES[few.get(model, "momentum")], GRIDS[pipeline]), engine)


@pytest.mark.parametrize("engine", ["algebra", "mlp", "sequential"])
@pytest.mark.parametrize("model", ["softmax", "wide softmax"])
def test_chaotic_training_shows_no_neighbour(engine: str, model: str) -> None:
    pipeline = UpdatePipeline(Clip(1.0, 2), granularity=2.0**-20)
    job = replace(make_job(model, CHAOS, pipeline, (7, 1, 12, 60, 20)), isolated=True)
    running = build_engine(job, engine)
    one, other = (
        sum_of(running, RoundRequest(start_of(job) + moved, np.array([OWN]), 2)).total
        for moved in (0.0, 2.0**-20)
    )
    assert int((one - other).abs().max()) > 50  # steps of the grid, out of one at the start
    check(job, engine)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", EACH)
@pytest.mark.parametrize("model", ["linear", "softmax", "wide softmax", "mlp", "own module"])
def test_rates_count_a_clients_own_steps(engine: str, model: str) -> None:
    check(job_of(model, COUNTED), engine)


@pytest.mark.parametrize("engine", EACH)
def test_a_clients_votes_are_its_own(engine: str) -> None:
    plain = job_of("mlp", RULES["momentum"], UpdatePipeline())
    questions = torch.from_numpy(plain.federation.train.inputs[:20])
    votes = UpdatePipeline(
        Clip(5.0), granularity=2.0**-4, ballot=Ballot(plain.module, questions, 3)
    )
    check(replace(plain, pipeline=votes), engine)


@pytest.mark.parametrize("engine", ["sequential", "generic"])
def test_what_a_module_draws_or_remembers_is_no_other_clients(engine: str) -> None:
    job = job_of("mlp", RULES["momentum"])
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), Remembers(), nn.Linear(8, 3))
    check(replace(job, module=module, layout=layout_of(module)), engine)


class AlwaysDrops(nn.Module):
    """Draws while voting too, as a forgotten `training` argument makes it."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5)


class ShiftsInPlace(nn.Module):
    """Changes what it reads by its own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x += 50 * self.shift
        return x + self.shift


@pytest.mark.parametrize("engine", ["sequential", "generic"])
@pytest.mark.parametrize("layer", [lambda: nn.Dropout(0.5), AlwaysDrops], ids=["train", "always"])
def test_what_the_last_gradient_draws_is_no_other_clients(
    engine: str, layer: type[nn.Module]
) -> None:
    """LUS asks for one more gradient after the last step, and a network with dropout draws in it:
    from a generator that others had moved on, one client's size chose what another sent."""
    job = job_of("mlp", RULES["momentum"], replace(GRID, sparsity=0.5))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 8), layer(), nn.Linear(8, 3))
    check(replace(job, module=module, layout=layout_of(module)), engine)


@pytest.mark.parametrize("layer", [AlwaysDrops, ShiftsInPlace])
def test_a_ballot_shows_no_other_clients_model(layer: type[nn.Module]) -> None:
    plain = job_of("mlp", RULES["momentum"], UpdatePipeline())
    torch.manual_seed(0)
    module = nn.Sequential(layer(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    found = []
    for cohort in ([OWN], [0, 2, 4, OWN]):
        questions = torch.from_numpy(plain.federation.train.inputs[:40].copy())
        votes = UpdatePipeline(Clip(7.0), granularity=2.0**-4, ballot=Ballot(module, questions, 3))
        job = replace(plain, module=module, layout=layout_of(module), pipeline=votes, isolated=True)
        found.append(rows_of(job, "sequential", cohort, 1)[0][-1])
    assert torch.equal(*found)


class Remembers(nn.Module):
    """A layer that changes with everything it sees, as spectral normalisation does."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + 0.01 * self.calls)


def test_scaled_bytes_are_transformed_alone() -> None:
    job = job_of("wide softmax", RULES["two epochs, weight decay"], bytes_=True)
    check(job, "algebra")


@pytest.mark.parametrize("model", ["linear", "wide softmax", "mlp"])
def test_processes_and_threads_change_no_integer(model: str) -> None:
    job = replace(job_of(model, COUNTED), isolated=True)
    start, everybody = start_of(job), np.arange(len(FIVE))
    wanted = sum_of(build_engine(job, "auto"), RoundRequest(start, everybody, 2))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = sum_of(build_engine(job, "auto", threads=2), RoundRequest(start, everybody, 2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(again.total, wanted.total)
    team = build_engine(job, "auto", processes=2)
    try:
        for cohort in (everybody, everybody[[4, 2, 3]], everybody[[3]]):
            alone = sum_of(build_engine(job, "auto"), RoundRequest(start, cohort, 2))
            assert torch.equal(sum_of(team, RoundRequest(start, cohort, 2)).total, alone.total)
    finally:
        team.close()


def test_nobody_decides_where_another_client_is_trained() -> None:
    """Machines may round differently: neither records nor the presence of others move a client."""
    job = replace(job_of("mlp", COUNTED), isolated=True)
    other, _ = neighbourhoods(job)["nasty others"]
    assert np.array_equal(home_parts(job.federation, 3), home_parts(other.federation, 3))
    names, places = np.array([f"client {n}" for n in range(40)]), {}
    for missing in (None, 0, 17, 39):
        there = [n for n in range(40) if n != missing]
        rows = np.zeros((len(there), 2), np.float32)
        data = Federation.from_arrays(rows, rows[:, 0], names[there], test_fraction=0.0)
        assert data.owners is not None
        parts = home_parts(data, 3).tolist()
        assert set(parts) == {0, 1, 2}
        for name, part in zip(data.owners.tolist(), parts, strict=True):
            assert places.setdefault(name, part) == part


def test_a_team_trains_every_isolated_client_at_its_home() -> None:
    class Note:
        """Notes who is trained together; the parts of a cohort come one after the other."""

        name = "sequential"
        heard: ClassVar[list[list[int]]] = []

        def updates(self, request: RoundRequest) -> Iterator[Block]:
            self.heard.append(request.cohort.tolist())
            yield from ()

        def close(self) -> None:
            """Nothing to release."""

    job = replace(job_of("mlp", COUNTED), isolated=True)
    team, homes = ProcessEngine(job, Note(), 2), home_parts(job.federation, 2)
    try:
        for cohort in (np.arange(len(FIVE)), np.array([4, 1, 2])):
            Note.heard.clear()
            sum_of(team, RoundRequest(start_of(job), cohort, 0, None, rows=True))
            for part, clients in enumerate(Note.heard):
                assert clients == [n for n in cohort.tolist() if homes[n] == part]
    finally:
        team.close()


def test_a_probe_of_the_model_reads_nobodys_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which engine runs a model must not follow from how the first client's record went through."""
    job, seen = job_of("own module", RULES["momentum"]), []

    def look(self: Federation, inputs: np.ndarray) -> np.ndarray:
        seen.append(inputs)
        return inputs

    monkeypatch.setattr(Federation, "model_inputs", look)
    assert supports(job, "generic") is None
    assert operations(job) > 0
    assert len(seen) == 2
    assert not any(inputs.any() for inputs in seen)


def test_groups_of_isolated_clients_stay_within_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client holds eight vectors of weights and three copies of its records."""
    job = replace(make_job("mlp", RULES["momentum"], GRID, (5,) * 11), isolated=True)
    each = 8 * job.layout.size + 3 * 5 * math.prod(job.federation.input_shape)
    groups: list[int] = []
    sums = []
    for memory in (5 * each - 1, each - 1, 100 * each):
        monkeypatch.setattr(batched, "_TOGETHER", memory)
        asked = RoundRequest(start_of(job), np.arange(11), 2)
        groups += [len(block.places) for block in build_engine(job, "mlp").updates(asked)]
        sums.append(sum_of(build_engine(job, "mlp"), asked).total)
    assert groups == [4, 4, 3] + [1] * 11 + [11]
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])


def test_sizes_are_rounded_up_to_few_binary_digits() -> None:
    sizes = np.array([1, 8, 9, 63, 64, 65, 128, 129, 256, 257])
    assert size_class(sizes).tolist() == [16, 16, 16, 64, 64, 80, 128, 160, 256, 320]
