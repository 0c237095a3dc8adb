"""What is told of every round while a run goes on, and may end it.

A callback sees what `RoundReport` holds: of a protected run released values, and figures on the
test examples. Whoever ends a run after looking at its rounds has still spent the whole plan's
epsilon: a smaller one would hold only if the end had been fixed before. `Run.guarantee` says so.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedveil.core.arguments import count
from fedveil.core.containment import contained
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.data.federation import HELD_OUT_NOTE
from fedveil.planning.plan import Plan
from fedveil.privacy.rounding import at_most

if TYPE_CHECKING:
    from fedveil.run.round_report import RoundReport


_log = logging.getLogger(__name__)


class Callback:
    """Is told what happens in a run. Override what you need; this class does nothing.

    >>> class Print(fv.Callback):
    ...     def on_round(self, report):
    ...         print(report.round_number, report.metrics)

    Give instances to a run: `fv.Run(plan, callbacks=[Print()])`.
    """

    def on_begin(self, facts: Mapping[str, Any]) -> None:
        """Before the first round: method, data, rounds, clients, cohort, parameters, seed, epsilon,
        delta, certified, whether there are test examples, and whether they are `public`."""

    def on_round(self, report: RoundReport) -> bool | None:
        """After a round. True ends the run, and so does whatever it raises; but a protected run
        only if its test examples are public, for the report has figures on them."""

    def on_end(self) -> None:
        """After the last round."""


def facts_of(plan: Plan) -> dict[str, Any]:
    """Return what is known of a run before it begins: nothing of the clients' data."""
    guarantee = plan.guarantee
    return {
        "method": plan.method.name,
        "data": plan.federation.name,
        "rounds": plan.method.rounds,
        "clients": plan.sampling.clients,
        "cohort": plan.sampling.expected_cohort,
        "parameters": plan.layout.size,
        "seed": plan.seed,
        "protected": plan.protected,
        "epsilon": None if guarantee is None else guarantee.epsilon,
        "delta": None if guarantee is None else guarantee.delta,
        "certified": guarantee is not None and guarantee.certified,
        "public": HELD_OUT_NOTE not in plan.federation.notes,
        "test_examples": len(plan.federation.test) > 0,
    }


def check_stop(facts: Mapping[str, Any]) -> None:
    """Refuse to let a callback end a run: whichever it is, it was shown the figures on the test
    examples."""
    if facts["protected"] and not facts["public"]:
        raise PrivacyRefusal(
            "stopping by test examples that are the clients' own would let them decide, "
            "without noise, which model is released",
            "give a public test part, or a seed to simulate",
        )


class Audience:
    """The callbacks of a run. Where test examples are the clients' own, no callback can end it.

    They are shown figures on these examples without noise. If they could stop the run, by a True or
    by an error, the examples would decide which model is released.
    """

    def __init__(self, callbacks: Sequence[Callback], plan: Plan) -> None:
        self._callbacks, self._begun = callbacks, list[Callback]()
        self._facts = facts_of(plan) if callbacks else {}
        self._shut = bool(callbacks) and self._facts["protected"] and not self._facts["public"]

    def begin(self) -> None:
        """Tell all of them what is known before the first round; they may refuse to begin."""
        for one in self._callbacks:
            one.on_begin(self._facts)
            self._begun.append(one)

    def round(self, report: RoundReport) -> bool:
        """Tell all of them of a round; returns whether one of them ends the run."""
        answers = [self._told(one, partial(one.on_round, report)) for one in self._callbacks]
        stop = any(answers)  # all of them have been told
        if stop and self._shut:
            _log.warning("a callback asked to stop; the run goes on: %s", _SHUT)
        return stop and not self._shut

    def end(self) -> None:
        """Tell those that have begun."""
        for one in self._begun:
            self._told(one, one.on_end)

    def _told(self, one: Callback, call: Callable[[], bool | None]) -> bool:
        with contained() if self._shut else nullcontext():
            return bool(call())
        _log.warning("%s failed: %s", type(one).__name__, _SHUT)
        return False


_SHUT = "test examples are the clients' own, and must not decide which model is released"


def figures_of(report: RoundReport) -> dict[str, float]:
    """Return the finite figures of a round by name."""
    figures = dict(report.figures)
    if report.metrics is not None:
        figures["loss"] = report.metrics.loss
        if report.metrics.accuracy is not None:
            figures["accuracy"] = report.metrics.accuracy
    if report.epsilon_so_far is not None:
        figures["epsilon_so_far"] = report.epsilon_so_far
    return {name: float(value) for name, value in figures.items() if math.isfinite(value)}


class EarlyStopping(Callback):
    """Ends a run whose loss on the test examples has not fallen for `patience` evaluations.

    The loss must have fallen by `least` to count. In a protected run the test examples must be
    public (`Federation.from_arrays(..., test=...)`): held out from the clients' own, they would
    decide without noise which model is released. The epsilon remains that of the whole plan. A run
    without test examples is refused.
    """

    def __init__(self, patience: int = 3, least: float = 0.0) -> None:
        self.patience, self.least = count("patience", patience), least
        self._best, self._since = math.inf, 0

    def on_begin(self, facts: Mapping[str, Any]) -> None:
        check_stop(facts)  # before anything is paid for
        if not facts["test_examples"]:
            raise ConfigError(
                "EarlyStopping: there are no test examples to stop by; hold some out "
                "(test_fraction), or leave it out"
            )

    def on_round(self, report: RoundReport) -> bool:
        if report.metrics is None:
            return False
        if report.metrics.loss < self._best - self.least:
            self._best, self._since = report.metrics.loss, 0
        else:
            self._since += 1
        return self._since >= self.patience


class Progress(Callback):
    """Show how far a run has come: one line that changes in a notebook or a terminal, elsewhere one
    line for every evaluation.

    Times are shown of simulations only: they depend on who takes part and on how much data they
    have. A round of a secure sum that was not released is always told.
    """

    def __init__(self) -> None:
        self.on_begin({})

    def on_begin(self, facts: Mapping[str, Any]) -> None:
        self._facts, self._figures = facts, ""
        self._shown: Any = None  # what a notebook displays
        self._rounds, self._began = 0, time.perf_counter()

    def on_round(self, report: RoundReport) -> None:
        self._rounds += 1
        if report.metrics is not None:
            self._figures = "  ".join(f"{name} {text}" for name, text in _texts(report).items())
        place = f"round {report.round_number}/{self._facts['rounds']}"
        text = f"{place}  {self._figures}{self._speed(report.round_number)}"
        notebook = _in_notebook()
        begin, end = ("\r\x1b[K", "") if _is_line() else ("", "\n")
        if report.dropouts is not None and report.dropouts.not_released:
            why = report.dropouts.not_released
            print(f"{begin}{place} not released, weights kept: {why}", file=sys.stderr, flush=True)
        if notebook:
            self._display(text)
        elif begin or report.metrics is not None:
            print(f"{begin}{text}", end=end, file=sys.stderr, flush=True)

    def _speed(self, done: int) -> str:
        if self._facts["protected"]:
            return ""
        pace = (time.perf_counter() - self._began) / self._rounds
        seconds_left = pace * (self._facts["rounds"] - done)
        return f"  {self._facts['cohort'] / pace:,.0f} clients/s  {seconds_left:.0f} s left"

    def on_end(self) -> None:
        if _is_line():
            print(file=sys.stderr)

    def _display(self, text: str) -> None:
        from IPython.display import Pretty, display

        if self._shown is None:
            self._shown = display(Pretty(text), display_id=True)
        else:
            self._shown.update(Pretty(text))


def _texts(report: RoundReport) -> dict[str, str]:
    """Return what a line says of an evaluated round; a run without test examples has no loss."""
    figures = figures_of(report)
    texts = {"loss": f"{figures['loss']:.4f}"} if "loss" in figures else {}
    if "accuracy" in figures:
        texts["accuracy"] = f"{figures['accuracy']:.1%}"
    if report.epsilon_so_far is not None:
        texts["epsilon so far"] = at_most(report.epsilon_so_far, 3)
    return texts


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _is_line() -> bool:
    """Return whether progress is one line of a terminal that changes."""
    return sys.stderr.isatty() and not _in_notebook()


def _needed(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f'{extra}: pip install "fedveil[{extra.lower()}]"') from None


class TensorBoard(Callback):
    """Writes each round's figures for TensorBoard: `pip install "fedveil[tensorboard]"`."""

    def __init__(self, directory: str) -> None:
        self._writer = _needed("torch.utils.tensorboard", "TensorBoard").SummaryWriter(directory)

    def on_begin(self, facts: Mapping[str, Any]) -> None:
        lines = [f"{name}: {value}" for name, value in facts.items()]
        self._writer.add_text("run", "  \n".join(lines))

    def on_round(self, report: RoundReport) -> None:
        for name, value in figures_of(report).items():
            self._writer.add_scalar(name, value, report.round_number)

    def on_end(self) -> None:
        self._writer.close()


class Mlflow(Callback):
    """Logs what is run, and each round's figures, to the active run of MLflow, or to a new one if
    none is: `pip install "fedveil[mlflow]"`."""

    def __init__(self) -> None:
        self._client = _needed("mlflow", "MLflow")
        self._own = False  # whether the active run is ours to end

    def on_begin(self, facts: Mapping[str, Any]) -> None:
        self._own = self._client.active_run() is None
        if self._own:  # else MLflow would keep one open that the next run could not log to
            self._client.start_run()
        self._client.log_params(dict(facts))

    def on_round(self, report: RoundReport) -> None:
        self._client.log_metrics(figures_of(report), step=report.round_number)

    def on_end(self) -> None:
        if self._own:
            self._client.end_run()
