"""Budgets of their own: clients that clip to less, and persons or sites whose coins are rarer.

Which client or person asks for less than the run's epsilon, and for how little, is public and fixed
before the first round: a recipe names clients (`privacy.budgets`), or a column of the table gives
everybody's (`privacy.epsilon_column`). The run's own epsilon is the largest.

A client gives a share of what others give. Where its update is protected, that is a share of the
clip. Where records or persons are, by secret batches, it is a share of their coins' bias: no
gradient is clipped to less, and all units of the client have the smaller epsilon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import number_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Unit
from fedveil.data.federation import Federation
from fedveil.methods.parts.noise_placement import Bounded, NoisePlacement
from fedveil.privacy.accounting import account
from fedveil.privacy.budgets import (
    largest_rate,
    largest_scale,
    rated_releases,
    scaled_releases,
)
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.rounding import at_most
from fedveil.privacy.sampling import CappedPoisson, FixedSize
from fedveil.training.client.local_training import LocalTraining

Rates = tuple[tuple[float, float], ...]  # own epsilons, rising, and the rates that keep to them

_MOST_GROUPS = 100  # different epsilons in one run: each is accounted by itself


def own_scales(
    noise: NoisePlacement, budgets: Mapping[str, float], model: PrivacyModel, delta: float
) -> tuple[float, ...] | None:
    """Return the share of the clip that each client keeps to, so that its own epsilon fits.

    Args:
        noise: The fitted noise of the run, with all of its rounds.
        budgets: Epsilons of single clients, by their names in the data, or by their numbers where
            the data name nobody. They are public, and not computed from records.
        model: Who is protected from whom.
        delta: Of everybody's guarantee.

    Returns:
        Shares in (0, 1], `[clients]`, of the clip or of the coins' bias; None without budgets. A
        client without a budget of its own, or with one above the run's, gives all.

    Raises:
        PrivacyRefusal: No proof covers a smaller clip of single clients here.
        ConfigError: A client is not there, or its budget cannot be met.
    """
    federation = noise.facts.federation
    owners = range(federation.clients) if federation.owners is None else federation.owners
    places = {str(owner): place for place, owner in enumerate(owners)}
    persons = federation.train.persons is not None
    if federation.own_epsilons is not None and (model.unit is Unit.CLIENT or not persons):
        if persons:
            raise ConfigError(
                "privacy.epsilon_column: the epsilons are persons' own, and this run protects "
                "clients. Set privacy.unit to person, or leave the person column out."
            )
        brought = zip(places, federation.own_epsilons.tolist(), strict=True)
        budgets = {name: level for name, level in brought if level < np.inf} | dict(budgets)
        _check_groups(set(budgets.values()))
    if not budgets:
        return None
    if model.adjacency is Adjacency.ADD_REMOVE:
        raise PrivacyRefusal(
            "budgets of single clients under add-remove: a guarantee that lists who asks for less "
            "tells that they are there",
            "use privacy.adjacency zero-out, without privacy.public_clients",
        )
    scales, scale_at = [1.0] * federation.clients, dict[float, float]()
    for name, epsilon in budgets.items():
        if str(name) not in places:
            some = ", ".join(list(places)[:5])
            raise ConfigError(
                f"privacy.budgets: no client {name!r}. There are {some}, for example."
            )
        level = number_of(f"privacy.budgets.{name}", epsilon)
        if level not in scale_at:
            scale_at[level] = own_scale(noise, level, model, delta)
        scales[places[str(name)]] = scale_at[level]
    return tuple(scales)


def own_scale(noise: NoisePlacement, epsilon: float, model: PrivacyModel, delta: float) -> float:
    """Return the largest share with which one client keeps to its own epsilon.

    Args:
        noise: The fitted noise of the run, with all of its rounds.
        epsilon: The client's budget.
        model: Who is protected from whom.
        delta: Of everybody's guarantee.
    """
    check_scalable(noise)
    if (model.contributions or 1) > 1:
        raise PrivacyRefusal(
            "budgets of single clients with privacy.sites_per_person above 1: a person may be at "
            "another one as well, which gives more",
            "use one epsilon, or let each person be at one client",
        )
    releases, terms = noise.releases(noise.facts.rounds), _account(noise, model, delta)
    if not by_coins(noise):
        return largest_scale(releases, epsilon=epsilon, **terms)
    usual = _rate(noise)
    rate = largest_rate(releases, epsilon=epsilon, **terms)
    # A little less: the bias is worked out again from the share.
    return 1.0 if rate == usual else rate / usual * (1 - 2.0**-50)


def by_coins(noise: NoisePlacement) -> bool:
    """Whether a client that gives a share has rarer coins, instead of a smaller clip."""
    return noise.bounded is Bounded.GRADIENT and noise.facts.local.batch_rate is not None


def restrained(noise: NoisePlacement, releases: Iterable[Release], share: float) -> list[Release]:
    """Return releases of this noise as they concern a client that gives a share."""
    if share == 1:
        return list(releases)
    if by_coins(noise):
        return rated_releases(list(releases), share * _rate(noise))
    return scaled_releases(list(releases), share)


def restrained_rule(
    noise: NoisePlacement, rule: LocalTraining, shares: Sequence[float] | float
) -> LocalTraining:
    """Return the local training of clients that give shares `[clients]`, or all the same one.

    A share of the clip is no matter of local training: it is kept by what leaves a client.
    """
    if not by_coins(noise):
        return rule
    own = np.asarray(shares, np.float64) * _rate(noise)
    numbers = noise.facts.federation.train.persons
    if own.ndim and rule.per_person and numbers is not None:
        spans = noise.facts.federation.persons
        asked = np.inf if rule.own_rates is None else rule.own_rates
        least = np.broadcast_to(asked, int(numbers.max()) + 1).copy()
        np.minimum.at(least, numbers[spans.starts[:-1]], np.repeat(own, spans.sizes))
        own = least
    return replace(rule, own_rates=own)


def _rate(noise: NoisePlacement) -> float:
    return noise.facts.local.batch_rate or 1.0


def check_scalable(noise: NoisePlacement) -> None:
    """Refuse budgets of single clients where neither a smaller clip nor rarer coins keep them."""
    if not by_coins(noise) and (noise.bounded is not Bounded.UPDATE or noise.count is not None):
        raise PrivacyRefusal(
            "budgets of single clients with this method: they are kept by clipping the client's "
            "update to less or by rarer secret coins, and here something else is bounded or "
            "counted as well",
            "use one clip on updates (dp-fedavg without privacy.clip_quantile), secret batches "
            "(training.batches poisson), or one epsilon",
        )
    if isinstance(noise.facts.sampling, FixedSize | CappedPoisson):
        raise PrivacyRefusal(
            "budgets of single clients with cohorts of limited size: whoever takes a client's free "
            "place brings a whole clip, so a smaller one of its own does not bound the difference",
            "use training.sampling poisson, secret-poisson, everyone or turns, or one epsilon",
        )


def own_rates(noise: NoisePlacement, model: PrivacyModel, delta: float) -> Rates:
    """Return the coins' biases with which persons keep to the epsilons that they bring.

    Args:
        noise: The fitted noise of the run, with all of its rounds.
        model: Who is protected from whom.
        delta: Of everybody's guarantee.

    Returns:
        Pairs of an epsilon and a rate, in rising order; none if nobody brings an epsilon.

    Raises:
        PrivacyRefusal: Samples are not secret, or single records are protected.
        ConfigError: An epsilon cannot be met.
    """
    federation = noise.facts.federation
    brought, persons = federation.own_epsilons, federation.train.persons
    if brought is None or model.unit is Unit.CLIENT or persons is None:
        return ()
    if not (brought < np.inf).any():  # everybody takes the run's
        return ()
    if model.unit is Unit.RECORD or noise.facts.local.batch_rate is None:
        raise PrivacyRefusal(
            f"privacy.epsilon_column with unit {model.unit} and no secret batches of persons: "
            "there is no coin that could be rarer for one of them",
            "use privacy.unit person (with a person column) and training.batches poisson, or "
            "privacy.unit client",
        )
    levels = sorted({one for one in brought.tolist() if one < np.inf})
    _check_groups(set(levels))
    releases, terms = noise.releases(noise.facts.rounds), _account(noise, model, delta)
    return tuple((one, largest_rate(releases, epsilon=one, **terms)) for one in levels)


def rates_of(federation: Federation, rates: Rates, usual: float) -> npt.NDArray[np.float64]:
    """Return the bias of each person's coin, `[persons]` by number.

    Raises:
        ConfigError: A person brings an epsilon for which no rate was planned.
    """
    brought = federation.own_epsilons
    rate_at = dict(rates) | {float("inf"): usual}
    if brought is None or not set(brought.tolist()) <= set(rate_at):
        raise ConfigError("plan: persons bring epsilons that it was not made for; make a new one")
    return np.array([rate_at[one] for one in brought.tolist()])


def own_epsilons(
    noise: NoisePlacement,
    scales: tuple[float, ...] | None,
    rates: Rates,
    model: PrivacyModel,
    delta: float,
) -> Iterator[str]:
    """Yield a sentence for each group of clients or persons with a budget of its own."""
    template = (
        "Budgets of their own are public and were set without looking at data: for {} of {} {}s, "
        "{}, epsilon is {}. Averages lean towards {}s with larger budgets."
    )
    for scale, count in sorted(Counter(scales or ()).items()):
        if scale < 1:
            found = own_guarantee(noise, scale, model, delta)
            how = f"which clip to {at_most(scale)} of the clip"
            if by_coins(noise):
                how = f"whose {model.unit}s' coins have bias {at_most(scale * _rate(noise))}"
            epsilon = at_most(found.epsilon)
            yield template.format(count, len(scales or ()), "client", how, epsilon, "client")
    brought = noise.facts.federation.own_epsilons
    if brought is None:
        return
    releases = noise.releases(noise.facts.rounds)
    for level, rate in rates:
        found = _accounted(noise, rated_releases(releases, rate), model, delta)
        epsilon = at_most(found.epsilon)
        how = f"whose coins have bias {at_most(rate)}"
        count = int(np.count_nonzero(brought == level))
        yield template.format(count, len(brought), "person", how, epsilon, "person")


def own_guarantee(
    noise: NoisePlacement, share: float, model: PrivacyModel, delta: float
) -> Guarantee:
    """Account the whole run for a client that gives a share."""
    listed = restrained(noise, noise.releases(noise.facts.rounds), share)
    return _accounted(noise, listed, model, delta)


def _accounted(
    noise: NoisePlacement, listed: Sequence[Release], model: PrivacyModel, delta: float
) -> Guarantee:
    """Account releases, beside those to which everybody contributes in full."""
    return account([*listed, *noise.facts.bought], privacy_model=model, delta=delta)


def _account(noise: NoisePlacement, model: PrivacyModel, delta: float) -> dict[str, Any]:
    return {"privacy_model": model, "delta": delta, "in_full": noise.facts.bought}


def _check_groups(levels: set[float]) -> None:
    if len(levels) > _MOST_GROUPS:
        raise ConfigError(
            f"privacy.epsilon_column: {len(levels)} different epsilons, of which each is accounted "
            f"by itself. Round them down to at most {_MOST_GROUPS}."
        )
