"""One round, in order.

    draw the cohort -> reserve the round in the ledger
      -> clients train and shape -> (mask, sum) -> noise
      -> divide by a public number -> smooth -> server optimiser
      -> store -> report

The order is what makes the guarantee true: the release is written to the ledger, then the noisy
result is computed, then it is stored, and only then shown.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from fedveil.privacy.secure_sums.errors import NotReleased
from fedveil.run.directory import Checkpoint
from fedveil.run.round_report import RoundDropouts, RoundReport
from fedveil.run.sums import Senders, divisor, next_clip, noise_deviation, update_sum
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.server.optimizers import State

if TYPE_CHECKING:
    from fedveil.run.run import Run


def play_round(run: Run, last: bool) -> RoundReport:
    """Run the next round.

    Args:
        run: The run, between two rounds.
        last: Whether no other round follows.

    Returns:
        What may be shown of the round.
    """
    began = time.perf_counter()
    plan, state, number = run.plan, run.state, run.next_round

    # Who takes part. The round is paid for before anything is computed from anybody's data.
    drawn = run.randomness.stream("cohort", number)
    cohort = plan.sampling.draw(number, drawn, run.clients)
    run.reserve(number)

    # Clients train from the shared weights and shape their updates. A masked sum takes each one
    # with its own noise share as soon as it is there; otherwise noise goes into the plain sum.
    updates = update_sum(plan, number, cohort, run.randomness, state.optimizer, run.memory)
    dropouts = run.aggregator.dropouts(cohort, run.randomness, number)
    try:
        total = run.aggregator.open(updates, cohort, dropouts)
        senders = Senders.of(plan, total, run.randomness, number)
        request = RoundRequest(
            state.weights, total.clients, number, updates.pipeline, total.rows, run.client_states
        )
        with run.aggregator.watch.phase("train"):
            for places, part in senders.parts(request):
                for block in run.engine.updates(part):
                    total.add(block.at(places))
        total.add_nothing(senders.idle)
        private = total.release()
        clients = total.clients  # who is in the sum: across machines some are lost on the way
        clip_state, figures = next_clip(
            plan, updates, total, run.aggregator, dropouts, senders, state.optimizer
        )
    except NotReleased as refusal:
        # No sum: the weights stay; the round's number and its reservation are used up.
        run.store(replace(state, rounds=number + 1), last)
        here = run.aggregator.took_part(cohort, dropouts)
        return run.report(None, {}, RoundDropouts(len(cohort), here, str(refusal)), last, began)

    # From here on everything follows from released values.
    shared = divisor(plan, updates.pipeline, clients)
    update = (private / shared).float()
    smoothed: State = {}
    if plan.method.smoothing is not None:
        deviation = noise_deviation(updates, len(clients), shared)
        update, smoothed = plan.method.smoothing.step(
            update, plan.layout, deviation, state.optimizer
        )
    weights, optimizer = plan.optimizer.step(state.weights, update, state.optimizer, number)

    run.store(Checkpoint(number + 1, weights, {**optimizer, **smoothed, **clip_state}), last)
    came = None if run.aggregator.sums is None else RoundDropouts(len(cohort), len(clients))
    return run.report(senders.statistics(total), figures, came, last, began)
