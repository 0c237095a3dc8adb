"""What `import fedveil` offers: the listed names alone, typed, documented and shown briefly."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import subprocess
import sys
import textwrap

import pytest
from tests.paths import ROOT

import fedveil as fv


@pytest.mark.parametrize("name", fv.__all__)
def test_every_public_object_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(fv, name)
    text = inspect.getdoc(thing) or ""
    assert text
    assert not text.startswith(f"{name}("), "that is what dataclass writes by itself"


@pytest.mark.parametrize("name", fv.__all__)
def test_examples_in_docstrings_run(name: str) -> None:
    thing = getattr(fv, name)
    finder = doctest.DocTestFinder(recurse=inspect.isclass(thing))
    home = sys.modules[thing.__module__]
    for example in finder.find(thing, name, module=home, globs={**vars(home), "fv": fv}):
        assert doctest.DocTestRunner().run(example).failed == 0


def test_the_example_of_the_package_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = (fv.__doc__ or "").splitlines()
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    assert "rounds=60" in code
    exec(code.replace("rounds=60", "rounds=2"), {})
    assert "epsilon 8" in capsys.readouterr().out


def test_asking_for_an_epsilon_does_not_load_torch() -> None:
    code = (
        "import sys, fedveil as fv; "
        "release = fv.Release(fv.Gaussian(1.0), fv.Poisson(0.1), 10); "
        "'torch' in sys.modules and sys.exit('torch was loaded')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def shown() -> list[object]:
    federation = fv.load("digits", clients=20)
    method = fv.dp_fedavg(
        rounds=2,
        cohort=fv.CohortRule(size=5),
        local=fv.LocalTraining(fv.LearningRate(0.5), epochs=1),
        clip=fv.Clip(1.0),
    )
    model = fv.build("logistic", federation)
    plan = fv.plan(method, federation, model, budget=fv.Budget(epsilon=8), seed=0)
    return [federation, method, plan, plan.guarantee, fv.Run(plan)]


def test_names_of_the_data_are_escaped_in_html() -> None:
    federation = dataclasses.replace(fv.load("digits"), name="<b>a & b</b>")
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in federation._repr_html_()


def test_a_repr_starts_no_accounting() -> None:
    _, _, plan, _, _ = shown()
    assert isinstance(plan, fv.Plan)
    anew = dataclasses.replace(plan, seed=1)
    assert "guarantee" not in vars(anew)
    assert "epsilon" not in repr(anew)
    assert "guarantee" not in vars(anew)


def test_examples_of_the_glossary_run() -> None:
    page = ROOT / "docs" / "glossary.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0
