"""A certified run trains with parts that it made from its own plan, whatever it is handed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.methods.parts.central_noise import CentralNoise
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.privacy.mechanisms import Gaussian
from fedveil.run.aggregator import OpenAggregator
from fedveil.run.run import job_of
from fedveil.run.sums import pipeline_in
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Engine

DRAW = np.random.default_rng(0)
INPUTS = DRAW.standard_normal((60, 4)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int64)
OWNERS = np.arange(60) // 5


def data() -> fv.Federation:
    test = (INPUTS[:8] + 9, LABELS[:8])
    return fv.Federation.from_arrays(INPUTS, LABELS, OWNERS, classes=2, test=test)


def method(**other: Any) -> fv.Method:
    return fv.dp_fedavg(
        rounds=2,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=LocalTraining(fv.LearningRate(0.1), steps=1),
        clip=fv.Clip(1.0),
        **other,
    )


def plan(of: fv.Method | None = None) -> fv.Plan:
    federation = data()
    module = fv.build("logistic", federation)
    return fv.plan(of or method(), federation, module, budget=fv.Budget(epsilon=1.0))


def certified(run: fv.Run) -> bool:
    assert run.guarantee is not None
    return run.guarantee.certified


def without_clip(made: fv.Plan) -> Engine:
    """One of fedveil's own engines, made from a job that neither clips nor rounds."""
    job = replace(job_of(made, Randomness(1)), pipeline=UpdatePipeline(), isolated=False)
    return build_engine(job, "sequential")


def test_an_own_engine_made_from_another_job_certifies_nothing() -> None:
    run = fv.Run(plan(), engine=without_clip(plan()))
    assert not certified(run)
    assert "was made outside the run" in str(run.guarantee.reason)  # type: ignore[union-attr]


def test_an_engine_that_is_exchanged_later_certifies_nothing(tmp_path: Path) -> None:
    run = fv.Run(plan())
    run.engine = without_clip(run.plan)
    assert not certified(run)
    kept = fv.Run(plan())
    kept.keep_in(fv.RunDirectory.create(tmp_path / "run", kept.plan, {}))
    with pytest.raises(fv.ConfigError, match="before keep_in"):
        kept.engine = without_clip(kept.plan)
    with pytest.raises(fv.ConfigError, match="before keep_in"):
        kept.aggregator = OpenAggregator(None)
    with pytest.raises(fv.ConfigError, match="not drawn again"):
        kept.unfinished = 0
    for name in ("plan", "job", "randomness", "memory", "clients"):
        with pytest.raises(AttributeError):
            setattr(kept, name, None)


def test_an_own_aggregator_without_the_plan_s_sums_certifies_nothing() -> None:
    shares = replace(method(), placement=fv.DistributedNoise())
    assert certified(fv.Run(plan(shares)))
    assert not certified(fv.Run(plan(shares), aggregator=OpenAggregator(None)))


@dataclass(frozen=True)
class Silent(CentralNoise):
    """Accounts for noise, and adds none."""

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        return total.float() * (at.grid or 1.0)


@dataclass(frozen=True)
class Never(fv.CohortRule):
    pass


@pytest.mark.parametrize(
    "changed", [{"placement": Silent()}, {"cohort": Never(fv.Scheme.EVERYONE)}]
)
def test_a_class_is_not_fedveil_s_own_because_it_says_so(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = changed.values()
    for name in ("fedveil.methods.parts.central_noise", "fedveil.x"):
        monkeypatch.setattr(type(part), "__module__", name)
        assert not certified(fv.Run(plan(replace(method(), **changed))))


def test_a_method_that_was_put_on_an_own_part_certifies_nothing() -> None:
    placement = CentralNoise()
    object.__setattr__(placement, "protect", lambda at, total, this_round: total.float())
    assert not certified(fv.Run(plan(replace(method(), placement=placement))))


def test_a_method_that_was_put_on_the_data_certifies_nothing() -> None:
    federation = data()
    object.__setattr__(federation, "model_inputs", lambda inputs: inputs - inputs.mean())
    made = fv.plan(
        method(), federation, fv.build("logistic", federation), budget=fv.Budget(epsilon=1.0)
    )
    assert not certified(fv.Run(made))


def test_a_run_does_what_follows_from_its_plan_s_choices_alone() -> None:
    """Nothing that was derived before it is believed: not a pipeline, not a subclass's sampling."""
    made = plan()
    vars(made)["pipeline"] = UpdatePipeline()
    vars(made)["sampling"] = replace(made.sampling, clients=1)
    run = fv.Run(made)
    assert run.job.pipeline == plan().pipeline
    assert run.job.pipeline.clip is not None
    assert run.plan.sampling == plan().sampling

    class Mine(fv.Plan):
        def spent(self, rounds: int) -> float | None:
            return 0.0

    own = plan()
    chosen = {each.name: getattr(own, each.name) for each in fields(fv.Plan)}
    mine = Mine(**chosen)
    assert type(fv.Run(mine).plan) is fv.Plan


def test_what_is_done_to_the_module_later_does_not_reach_the_run() -> None:
    made = plan()
    run = fv.Run(made)
    before = pipeline_in(run.plan, 0, {})
    list(made.module.modules())[-1].register_forward_hook(lambda *args: torch.zeros(1))
    made.module.forward = lambda inputs: inputs.sum()  # type: ignore[method-assign]
    assert run.plan.module is not made.module
    run.finish()
    run.close()
    assert pipeline_in(run.plan, 0, {}) == before


def test_no_missing_client_moves_others_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = fv.CohortRule(fv.Scheme.EVERYONE, clients=20)
    named = plan(replace(method(), cohort=cohort))
    nameless = replace(named, federation=replace(named.federation, owners=None))
    for one in (named, nameless):
        fv.Run(one).close()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(fv.PrivacyRefusal, match="name the clients in a column"):
        fv.Run(nameless)
    fv.Run(named)


def test_a_run_of_its_own_parts_is_certified() -> None:
    assert certified(fv.Run(plan()))


def test_a_mechanism_of_another_s_stays_another_s_under_any_name() -> None:
    forged = type("Forged", (Gaussian,), {"__module__": "fedveil.privacy.mechanisms"})
    assert Gaussian(1.0).foreign is False
    assert forged(1.0).foreign is True
