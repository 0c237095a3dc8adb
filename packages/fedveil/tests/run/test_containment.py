"""No value of an example can end a protected run, by whatever part of somebody else's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import Tensor, nn
from torch.nn import functional

import fedveil as fv
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.models.features import with_features

DRAW = np.random.default_rng(3)
INPUTS = DRAW.standard_normal((40, 3)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int64)
OWNERS = np.arange(40) // 10
ODD = np.float32(3e38)  # which no part is tried with beforehand: that is the largest number
TEST = (INPUTS[:8] + 1, LABELS[:8])


class Other(BaseException):
    """What nobody expects to be raised."""


def federation(odd: tuple[int, ...] = (), **given: object) -> fv.Federation:
    inputs = INPUTS.copy()
    inputs[list(odd)] = ODD
    settings: dict[str, object] = {"classes": 2, "test": TEST} | given
    return fv.Federation.from_arrays(inputs, LABELS, OWNERS, **settings)  # type: ignore[arg-type]


def fails(error: Callable[[], BaseException]) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if not bool((outputs.abs() < 1e30).all()):
            raise error()
        return functional.cross_entropy(outputs, targets, reduction="none")

    return loss


class Broken(nn.Module):
    """Raises at odd inputs, in an operation that `vmap` can batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layer(inputs)
        sign = 1 - 2 * (inputs[..., 0] == float(ODD)).float()
        root = torch.linalg.cholesky(sign[..., None, None] * torch.eye(2))
        return scores * root[..., 0, :1].detach()


def by_client(data: fv.Federation, module: nn.Module, loss: object = None) -> fv.Plan:
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=2, loss=loss)  # type: ignore[arg-type]
    method = fv.dp_fedavg(
        rounds=2, cohort=fv.CohortRule(fv.Scheme.EVERYONE), local=local, clip=fv.Clip(1.0)
    )
    return fv.plan(method, data, module, budget=fv.Budget(epsilon=4.0))


def by_record(data: fv.Federation, module: nn.Module, loss: object = None) -> fv.Plan:
    local = fv.LocalTraining(
        fv.LearningRate(0.1),
        steps=1,
        batch_size=10,
        loss=loss,  # type: ignore[arg-type]
    )
    method = fv.gradient_noise(
        rounds=2, cohort=fv.CohortRule(fv.Scheme.EVERYONE), local=local, clip_norm=1.0
    )
    return fv.plan(method, data, module, budget=fv.Budget(epsilon=4.0))


def model() -> nn.Module:
    torch.manual_seed(1)
    return Broken()


def integers(run: fv.Run) -> Tensor:
    """What each client adds to the first sum, `[clients, weights]`."""
    plan, rows = run.plan, []
    for client in range(4):
        request = RoundRequest(plan.start, np.array([client]), 0, plan.pipeline)
        rows.append(sum_of(run.engine, request).total)
    return torch.stack(rows)


@pytest.mark.parametrize("error", [ValueError, SystemExit, Other, MemoryError])
def test_a_client_at_whose_records_a_loss_raises_takes_no_step(
    error: Callable[[], BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    plain = nn.Linear(3, 2)
    rows = {}
    for odd in ((), (12,)):
        run = fv.Run(by_client(federation(odd), plain, fails(error)))
        assert run.guarantee is not None
        assert run.guarantee.certified
        rows[odd] = integers(run)
        run.finish()
        run.close()
    assert not rows[12,][1].any()
    assert rows[()][1].any()
    others = [0, 2, 3]
    assert torch.equal(rows[12,][others], rows[()][others])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("engine", ["generic", "sequential"])
def test_a_client_at_whose_records_a_module_raises_takes_no_step(engine: str) -> None:
    rows = {}
    for odd in ((), (12,)):
        run = fv.Run(by_client(federation(odd), model()), speed=fv.Speed(engine=engine))
        rows[odd] = integers(run)
        run.finish()
        run.close()
    assert not rows[12,][1].any()
    assert torch.equal(rows[12,][[0, 2, 3]], rows[()][[0, 2, 3]])


@pytest.mark.parametrize("own", ["loss", "module, generic", "module, sequential"])
def test_a_record_at_which_a_part_raises_counts_as_zero_and_moves_no_other(own: str) -> None:
    """The sum without the record, bit for bit, as if its gradient had been zero."""
    sums = {}
    for odd in ((), (12,), (12, 15), tuple(range(10, 20))):
        loss = fails(ValueError) if own == "loss" else None
        module = nn.Linear(3, 2) if own == "loss" else Broken()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(0.25)
        plan = by_record(federation(odd), module, loss)
        quiet = replace(plan.local, gradient_noise=0.0, gradient_grid=None)
        run = fv.Run(plan, speed=fv.Speed(engine=own.split(", ")[-1] if "," in own else "auto"))
        job = replace(run.job, rule=quiet, pipeline=replace(run.job.pipeline, granularity=None))
        engine = build_engine(job, run.choice.name)
        sums[odd] = sum_of(engine, RoundRequest(plan.start, np.array([1]), 0)).total
        run.finish()
        run.close()
    bound = 0.1 * 1.0 / 10  # rate, clip, batch
    all_of_them, without_one, without_two, none = sums.values()
    assert 0 < float((all_of_them - without_one).norm()) <= bound * (1 + 1e-5)
    assert 0 < float((without_one - without_two).norm()) <= bound * (1 + 1e-5)
    assert not none.any()


def test_a_simulation_shows_what_raises() -> None:
    plan = by_client(federation((12,)), nn.Linear(3, 2), fails(ValueError))
    with pytest.raises(ValueError):  # noqa: PT011, of the user's own
        fv.Run(replace(plan, seed=1)).finish()


@dataclass(frozen=True)
class Fragile:
    """A feature map that raises at odd inputs, or makes something of another shape."""

    shape: bool = False
    data_independent = True

    def __call__(self, example: Tensor) -> Tensor:
        if float(example[0]) == float(ODD):
            if self.shape:
                return torch.zeros(7)
            raise ValueError("odd")
        return example.clamp(-9, 9)


@pytest.mark.parametrize("shape", [False, True])
def test_an_example_at_which_a_feature_map_raises_has_features_of_zero(shape: bool) -> None:
    made = with_features(federation((12,)), Fragile(shape))
    assert not made.train.inputs[12].any()
    assert made.train.inputs[:12].any(axis=1).all()


def test_a_held_out_example_at_which_the_model_raises_ends_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    odd = tuple(range(0, 40, 3))
    run = fv.Run(by_client(federation(odd, test=None, test_fraction=0.5), model()), every=1)
    metrics = run.finish()
    assert run.state.rounds == 2
    assert np.isnan(metrics.loss)
    assert run.scores() is None
    run.close()
    assert capfd.readouterr() == ("", "")


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.layer(self.table(tokens.long()).mean(dim=1))
        return scores


def test_no_private_token_stops_a_plan_or_a_run() -> None:
    tokens = DRAW.integers(0, 5, (40, 3)).astype(np.uint8)
    for last in (4, 5):
        tokens[12] = last
        data = fv.Federation.from_arrays(
            tokens, LABELS, OWNERS, classes=2, test=(tokens[:8] % 5, LABELS[:8])
        )
        run = fv.Run(by_client(data, Tokens()))
        run.finish()
        run.close()
        assert run.guarantee is not None
        assert run.guarantee.certified
        assert simulated(data).federation.clients == data.clients  # nor a simulation


def simulated(data: fv.Federation) -> fv.Plan:
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=2)
    method = fv.fedavg(rounds=1, cohort=fv.CohortRule(rate=1.0), local=local)
    return fv.plan(method, data, Tokens(), seed=1)


def test_which_values_overflow_is_not_said() -> None:
    """Neither as a warning nor, where warnings are errors, by the end of the run."""
    scaling = fv.Scaling(np.float32(0), np.float32(1e9))
    inputs = INPUTS.copy()
    inputs[12] = 3e38
    data = fv.Federation.from_arrays(
        inputs, LABELS, OWNERS, classes=2, test_fraction=0.3, scaling=scaling
    )
    for module in (nn.Linear(3, 2), model()):
        run = fv.Run(by_client(data, module), every=1)
        with warnings.catch_warnings(), np.errstate(all="raise"):
            warnings.simplefilter("error")
            run.finish()
        run.close()


class Raises(fv.Callback):
    def __init__(self, error: BaseException | None) -> None:
        self.error, self.told, self.ended = error, 0, False

    def on_round(self, report: fv.RoundReport) -> bool:
        self.told += 1
        if self.error is not None:
            raise self.error
        return True

    def on_end(self) -> None:
        self.ended = True
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [ValueError("0.3"), SystemExit(3), Other(), None], ids=repr)
def test_no_callback_ends_a_run_by_the_clients_own_test_examples(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Raises(error), Raises(None)
    data = federation(test=None, test_fraction=0.2)
    run = fv.Run(by_client(data, nn.Linear(3, 2)), every=1, callbacks=[one, other])
    run.finish()
    run.close()
    assert (one.told, other.told, one.ended, other.ended) == (2, 2, True, True)
    assert run.state.rounds == 2
    assert not run.stopped
    assert "must not decide which model is released" in caplog.text


def test_a_callback_may_raise_where_test_examples_are_public() -> None:
    run = fv.Run(by_client(federation(), nn.Linear(3, 2)), callbacks=[Raises(ValueError("mine"))])
    with pytest.raises(ValueError, match="mine"):
        run.finish()
