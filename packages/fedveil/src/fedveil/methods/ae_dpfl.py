"""AE-DPFL (Zhu et al. 2020), a baseline of Cheng et al.: agents vote, the server learns.

    cohort   all N agents, once
    agent    trains a model of its own from the public initial weights; for each of Q public,
             unlabelled inputs it sends a one-hot vote plus N(0, s^2 / N) by secure sum
    server   label of an input = argmax of its noisy histogram; trains the shared model on them

Nothing is clipped: a ballot has length sqrt(Q) whatever the data, so mu = sqrt(Q) / s for a zeroed
agent and sqrt(2 Q) / s for a replaced one, for the whole histogram. Bounds that depend on how
clear the votes were are private themselves and are not printed. The inputs must be public; those
held out from the clients' own data are so only in a simulation.
"""

from __future__ import annotations

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.method import CohortRule, Method, Scheme
from fedveil.methods.parts.noise_placement import NoisePlacement
from fedveil.methods.parts.noisy_votes import VoteNoise
from fedveil.methods.recipes.sections import Recipe, Voting
from fedveil.methods.registry import CHANGE, COLLUSION, method
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.server.averaging import Average


def ae_dpfl(
    *,
    local: LocalTraining,
    voting: Voting | None = None,
    placement: NoisePlacement | None = None,
) -> Method:
    """AE-DPFL: clients train models of their own, as `local` says, and vote on the labels of public
    inputs; the shared model learns from noisy counts, as `voting` says."""
    return Method(
        name="ae-dpfl",
        rounds=1,
        cohort=CohortRule(Scheme.EVERYONE),
        local=local,
        placement=placement or VoteNoise(),
        voting=voting or Voting(),
    )


@method(
    "ae-dpfl",
    what="agents vote on public inputs, noise on the counts, a model from the labels",
    source="Zhu et al. 2020; baseline of Cheng et al.",
    protects="all data of one client",
    towards="everybody, the server included: it sees noisy counts alone",
    keys=(*CHANGE, *COLLUSION),
    trust=Trust.DISTRIBUTED,
    sampling="everyone",
)
def from_recipe(recipe: Recipe) -> Method:
    privacy = recipe.privacy
    if recipe.server.average not in (None, Average.NONE):
        raise ConfigError("server.average: votes leave one model, and nothing to average")
    if recipe.server.schedule != "constant":
        raise ConfigError("server.schedule: votes leave one model, and no rate to let fall")
    return ae_dpfl(
        local=parts.local(recipe),
        voting=recipe.voting,
        placement=VoteNoise(
            parts.trust(recipe, Trust.DISTRIBUTED),
            parts.adjacency(recipe),
            privacy.colluders,
            privacy.honest_shares,
        ),
    )
