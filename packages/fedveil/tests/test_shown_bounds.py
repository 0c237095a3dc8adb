"""No bound on privacy is shown rounded to nearest: it would be below what is proved every other
time. What was asked for (a budget) is a number of the user's, and is shown as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import fedveil
from fedveil.privacy.rounding import at_least, at_most

ROOT = Path(fedveil.__file__).parent
_BOUNDS = ("epsilon", "spent")
_ASKED = {
    *("budget.epsilon", "self.budget.epsilon", "question.epsilon", "task.epsilon", "args.epsilon"),
    *("option.epsilon", "trials.recipe.privacy.epsilon", "self._epsilon", "p.epsilon"),
    *("document['budget_epsilon']", "one['epsilon']"),  # what an owner allows
    *("epsilon", "spent_epsilon"),  # arguments that errors and pictures name again
    *("each.epsilon[0]", "each.epsilon[1]"),  # both ends of an estimate, which bounds nothing
}


def rounded(tree: ast.AST) -> Iterator[ast.FormattedValue]:
    """Values in f-strings, with digits or not, in a message that no exception carries."""
    errors = (one for one in ast.walk(tree) if isinstance(one, ast.Raise))
    raised = {id(part) for one in errors for part in ast.walk(one)}
    for part in ast.walk(tree):
        spec = part.format_spec if isinstance(part, ast.FormattedValue) else None
        if spec is not None and id(part) not in raised and ast.unparse(spec)[-2:-1] in "gfe%":
            yield part


def test_bounds_on_the_screen_are_rounded_to_their_own_side() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for part in rounded(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(part.value)
            last = name.rstrip("']").rpartition(".")[2].rpartition("'")[2]
            if any(bound in last for bound in _BOUNDS) and name not in _ASKED:
                found.append(f"{path.relative_to(ROOT)}:{part.lineno}: {name}")
    assert found == []


@given(st.floats(0, 1e300), st.integers(1, 6))
def test_a_bound_that_is_shown_is_no_better_than_the_bound(bound: float, digits: int) -> None:
    assert float(at_least(bound, digits)) <= bound <= float(at_most(bound, digits))
