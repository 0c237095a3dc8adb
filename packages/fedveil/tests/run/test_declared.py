"""What nobody can check is declared, and what is declared stands in the guarantee."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.privacy.guarantee import Guarantee

DRAW = np.random.default_rng(5)
INPUTS = DRAW.standard_normal((60, 3)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int64)
OWNERS = np.arange(60) // 5
TEST = (DRAW.standard_normal((9, 3)).astype(np.float32), LABELS[:9])


def federation(**given: Any) -> fv.Federation:
    settings: dict[str, Any] = {"classes": 2, "test": TEST, "name": "ours"} | given
    return fv.Federation.from_arrays(INPUTS, LABELS, OWNERS, **settings)


def guarantee(data: fv.Federation, module: nn.Module | None = None) -> Guarantee:
    method = fv.dp_fedavg(
        rounds=2,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(0.1), steps=1),
        clip=fv.Clip(1.0),
    )
    model = fv.build("logistic", data) if module is None else module
    found = fv.plan(method, data, model, budget=fv.Budget(epsilon=1.0)).guarantee
    assert found is not None
    return found


def says(one: Guarantee, text: str) -> bool:
    return any(text in sentence for sentence in one.rests_on)


def kept(data: fv.Federation, path: Path) -> fv.Federation:
    return fv.Federation.open(data.save(path))


def test_that_rows_are_public_stands_in_the_guarantee_also_after_saving(tmp_path: Path) -> None:
    public = federation(public=True, classes=None, test=None)
    again = kept(public, tmp_path / "a")
    for data in (public, again, kept(again, tmp_path / "b")):
        found = guarantee(data)
        assert found.certified
        assert says(found, "That the rows of ours are public is declared")
    private = federation()
    for data in (private, kept(private, tmp_path / "d")):
        assert not says(guarantee(data), "rows of ours are public")


def test_that_test_examples_are_public_stands_in_the_guarantee() -> None:
    declared = "examples are public, and nobody's training examples"
    assert says(guarantee(federation()), declared)
    own = guarantee(federation(test=None, test_fraction=0.2))
    assert not says(own, declared)
    assert any("Test examples, which are the clients' own" in one for one in own.not_covered)


def test_training_rows_as_test_rows_are_noticed_also_after_saving(tmp_path: Path) -> None:
    plain = federation()
    for part in ("test", "validation"):
        data = replace(plain, **{part: plain.train})
        for one in (data, kept(data, tmp_path / part)):
            found = guarantee(one)
            assert not found.certified
            assert "training examples are test or validation examples too" in found.reason.lower()


@pytest.mark.parametrize("part", ["whole", "first layer"])
def test_weights_of_the_same_rows_under_another_name_certify_nothing(part: str) -> None:
    method = fv.fedavg(
        rounds=2,
        cohort=fv.CohortRule(rate=1.0),
        local=fv.LocalTraining(fv.LearningRate(0.5), steps=4),
    )

    def trained(data: fv.Federation) -> nn.Module:
        torch.manual_seed(1)
        run = fv.Run(fv.plan(method, data, nn.Sequential(nn.Linear(3, 2), nn.Identity()), seed=1))
        run.finish()
        model = run.model()
        return model if part == "whole" else nn.Sequential(next(model.children()))

    for name in ("ours", "other"):
        found = guarantee(federation(), trained(federation(name=name)))
        assert not found.certified
        assert f"a model trained on {name}" in found.reason
    public = guarantee(federation(), trained(federation(name="other", public=True)))
    assert public.certified
    assert says(public, "a model of other. That those data are public is declared")
    same = guarantee(federation(), trained(federation(public=True)))
    assert not same.certified


def recipe_on(file: Path, *tuned_on: Path | str) -> Guarantee:
    recipe = recipes.with_defaults(
        recipes.parse(
            {
                "data": {
                    "file": str(file),
                    "client_column": "who",
                    "label": "sick",
                    "classes": ["no", "yes"],
                    "columns": {"age": {"type": "number", "mean": 50, "std": 20}},
                },
                "training": {"method": "dp-fedavg", "rounds": 2, "sampling": "everyone"},
                "privacy": {"epsilon": 2.0, "tuned_on": [str(one) for one in tuned_on]},
            }
        )
    )
    found = plan_of(recipe, federation_of(recipe.data)).guarantee
    assert found is not None
    return found


def test_settings_tried_out_on_a_file_that_was_renamed_certify_nothing(tmp_path: Path) -> None:
    rows = "".join(f"{20 + n % 60},{'no' if n % 3 else 'yes'},{n // 5}\n" for n in range(60))
    file, other = tmp_path / "own.csv", tmp_path / "other.csv"
    for path in (file, other):
        path.write_text(f"age,sick,who\n{rows}")
    assert recipe_on(file).certified
    assert not recipe_on(file, file).certified
    published = recipe_on(file, other, "digits", "half of CIFAR-10's test images")
    assert published.certified
    assert says(published, "other.csv, declared to be public and no copy of the protected data")
    renamed = file.rename(tmp_path / "renamed.csv")
    found = recipe_on(renamed, file)
    assert not found.certified
    assert "own.csv, which is gone, and may be the protected data" in found.reason
