"""What was tried and how it went, in an Optuna study: in memory, or in a file to go on from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.advise.candidate import Candidate
from fedveil.advise.proxy_trials import Outcome, Trial
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    import optuna

_ABOUT = "about"
_AT_RANDOM = 10  # settings before Optuna guesses
_WEIGHED = 100  # guesses of which the most promising is tried


class Journal:
    """Outcomes by trial, and the study that proposes settings.

    With a path, Optuna's journal file keeps both as soon as they are known. `about` says which
    question they answer; a file about another one is refused. Outcomes are attributes of the study:
    not every trial is Optuna's own, and each may be asked for again.
    """

    def __init__(
        self, path: Path | None = None, about: Mapping[str, Any] | None = None, seed: int = 0
    ) -> None:
        self.study = _study(path, json.loads(json.dumps(about or {})), seed)
        kept = self.study.user_attrs
        self._known = {_trial(key): _outcome(kept[key]) for key in kept if key != _ABOUT}
        self.found = len(self._known)  # outcomes that were in the file

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> list[tuple[Trial, Outcome]]:
        return list(self._known.items())

    def get(self, trial: Trial) -> Outcome | None:
        return self._known.get(trial)

    def add(self, trial: Trial, outcome: Outcome) -> None:
        self._known[trial] = outcome
        loss, *rest = astuple(outcome)
        value = [loss if math.isfinite(loss) else None, *rest]
        self.study.set_user_attr(json.dumps(astuple(trial)), value)

    @property
    def work(self) -> int:
        """Local steps of all clients in all trials."""
        return sum(outcome.work for outcome in self._known.values())


def _study(path: Path | None, about: Mapping[str, Any], seed: int) -> optuna.Study:
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise ConfigError("--pilot: needs Optuna; pip install 'fedveil[plan]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage: optuna.storages.BaseStorage = optuna.storages.InMemoryStorage()
    try:
        if path is not None:
            if path.exists():  # the last line may have been cut short when the search was stopped
                whole = path.read_bytes()
                path.write_bytes(whole[: whole.rfind(b"\n") + 1])
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        study = optuna.create_study(study_name="pilot", storage=storage, load_if_exists=True)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--journal {path}: cannot be read: {error}") from None
    if study.user_attrs.get(_ABOUT, about) != about:
        raise ConfigError(f"--journal {path}: is about another recipe or proxy; name a new file")
    study.set_user_attr(_ABOUT, about)
    for unfinished in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(unfinished.number, state=optuna.trial.TrialState.FAIL)
    seed += len(study.trials)
    study.sampler = optuna.samplers.TPESampler(
        seed=seed, multivariate=False, n_startup_trials=_AT_RANDOM, n_ei_candidates=_WEIGHED
    )
    study.pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return study


def _trial(key: str) -> Trial:
    settings, *rest = json.loads(key)
    return Trial(Candidate(*settings), *rest)


def _outcome(value: list[Any]) -> Outcome:
    return Outcome(math.inf if value[0] is None else value[0], *value[1:])
