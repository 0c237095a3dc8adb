"""Whether other processes can work on a job: asked before anything of theirs is imported."""

from __future__ import annotations

import os
import pickle

from fedveil.training.engines.contract import Job


def under_torchrun() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_follower() -> bool:
    """Whether this process only follows: `torchrun` started it with a rank above zero."""
    return under_torchrun() and int(os.environ.get("RANK", "0")) > 0


def why_not_elsewhere(job: Job) -> str | None:
    """Return why other processes cannot train this job's model; None if they can."""
    if job.rule.step is not None:
        return "what its local step remembers of clients stays in one process"
    for child in job.module.modules():
        kind = type(child)
        if kind.__module__ == "__main__":
            return (
                f"model class {kind.__qualname__} is defined in the main program, where other "
                "processes cannot import it; move it to a module"
            )
    try:
        pickle.dumps((job.module, job.rule, job.pipeline, job.randomness))
    except Exception as error:  # pickle lets through whatever a user's class raises
        return f"the model cannot be sent to other processes: {error}"
    return None
