"""`fedveil account --paper`: what a paper would have claimed, beside what is proved."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.cli import mechanism_args as described
from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
from fedveil.privacy.rounding import at_most

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedveil.privacy.guarantee import Guarantee
    from fedveil_lab.reproduction.claims.claim import Claim

Proved = list[tuple[str, "Guarantee | None", str]]


def compare(args: argparse.Namespace) -> int:
    """Print the paper's claim and every guarantee that holds for the same noise."""
    sides: dict[str, Callable[[argparse.Namespace], tuple[Claim, Proved]]] = {
        "fu": _fu,
        "hu": _hu,
        "liang": _liang,
        "cheng": _cheng,
    }
    try:
        claimed, proved = sides[args.paper](args)
    except FedveilError:
        raise
    except (ValueError, ArithmeticError):
        raise ConfigError(
            f"--paper: the formulas of {args.paper} break down at such numbers"
        ) from None
    if args.json:
        documents = [_document(row) for row in proved]
        console.emit({**documents[0], "claimed": claimed.to_dict(), "proved": documents})
        return 0
    rows = [(f"claimed by {claimed.paper}", f"{claimed.value:.6g}", "no")]
    notes = [f"The claim: {claimed.verdict}."]
    for what, guarantee, refusal in proved:
        if guarantee is None:
            rows.append((what, "refused", "no"))
            notes.append(f"{what.capitalize()}: {refusal}.")
        else:
            rows.append(
                (what, at_most(guarantee.epsilon, 6), "yes" if guarantee.certified else "no")
            )
            if guarantee.reason:
                notes.append(f"{what.capitalize()}: {guarantee.reason}.")
    title = f"{claimed.paper}, {claimed.statement}: claimed and proved"
    console.table(title, ("", "epsilon", "certified"), rows)
    for note in notes:
        console.say(note)
    proofs = [guarantee for _, guarantee, _ in proved if guarantee is not None]
    for head, name in (("rests on", "rests_on"), ("does not cover", "not_covered")):
        lines = dict.fromkeys(line for proof in proofs for line in getattr(proof, name))
        console.say("\n".join([f"What is proved {head}, each as far as it applies:",
                               *(f"- {line}" for line in lines)]))  # fmt: skip
    return 0


def _document(row: tuple[str, Guarantee | None, str]) -> dict[str, Any]:
    what, guarantee, refusal = row
    if guarantee is None:
        return {"what": what, "epsilon": None, "certified": False, "reason": refusal}
    return {"what": what, **guarantee.to_dict()}


def _fu(args: argparse.Namespace) -> tuple[Claim, Proved]:
    """Local noise, round robin, whole gradients clipped."""
    from fedveil.privacy.sampling import RoundRobin
    from fedveil_lab.reproduction.claims import fu

    clients, cohort, rounds, delta = _need(args, "clients", "cohort", "rounds", "delta")
    turns = fu.paper_fu_participations(clients=clients, cohort=cohort, rounds=rounds).value
    mechanism, sampling = described.mechanism_of(args), RoundRobin(clients, cohort)
    if described.mechanism_kind(args) == "laplace":
        (scale,) = _need(args, "scale_multiplier")
        claimed = fu.paper_fu_laplace_epsilon(noise_multiplier=scale, participations=turns)
    else:
        (noise,) = _need(args, "noise_multiplier")
        claimed = fu.paper_fu_gaussian_epsilon(
            noise_multiplier=noise, participations=turns, delta=delta, c2=args.c2
        )
    return claimed, [
        _row(f"local, {one}", args, mechanism, sampling, "client", one, "local")
        for one in ("replace", "zero-out")
    ]


def _hu(args: argparse.Namespace) -> tuple[Claim, Proved]:
    """Noise on every gradient, one record protected, secure sum."""
    from fedveil.privacy.gradient_perturbation import NoisyGradients, record_uses
    from fedveil.privacy.sampling import Balanced
    from fedveil_lab.reproduction.claims import hu

    clients, cohort, rounds, delta = _need(args, "clients", "cohort", "rounds", "delta")
    steps, batch, records = _need(args, "local_steps", "batch_size", "records")
    clip, std = _need(args, "clip_norm", "gradient_std")
    claimed = hu.paper_hu_epsilon(
        delta=delta,
        participations=cohort * rounds / clients,  # the mean, as the paper does
        local_steps=steps,
        gradient_bound=clip,
        cohort=cohort,
        records=records,
        batch_size=batch,
        noise_std=std,
    )
    uses = record_uses(local_steps=steps, records=records, batch_size=batch)
    mechanism = NoisyGradients(clip, batch, std, steps, uses, shares=cohort)
    rest = (args, mechanism, Balanced(clients, cohort, rounds), "record", "replace")
    return claimed, [
        _row("any model, undivided", *rest, "local"),
        _row(f"divided by the shares, {steps} local steps", *rest, "distributed"),
    ]


def _liang(args: argparse.Namespace) -> tuple[Claim, Proved]:
    """Central noise on a sampled sum."""
    from fedveil.privacy.mechanisms import Gaussian
    from fedveil.privacy.sampling import FixedSize, Poisson
    from fedveil_lab.reproduction.claims import liang

    clients, noise, rounds, delta = _need(args, "clients", "noise_multiplier", "rounds", "delta")
    cohort = args.cohort if args.cohort is not None else round(_need(args, "rate")[0] * clients)
    kind = args.sampling or "fixed"
    claimed = liang.paper_liang_epsilon(
        noise_multiplier=noise, clients=clients, cohort=cohort, rounds=rounds, delta=delta,
        sampling=kind,
    )  # fmt: skip
    fixed = kind != "poisson"
    sampling = FixedSize(clients, cohort) if fixed else Poisson(cohort / clients, clients)
    return claimed, [
        _row(
            f"noise {'' if times == 1 else times}z*G on the sum", args, Gaussian(times * noise),
            sampling, "client", "replace" if fixed else "zero-out",
        )
        for times in ((1, 2) if fixed else (1,))
    ]  # fmt: skip


def _cheng(args: argparse.Namespace) -> tuple[Claim, Proved]:
    """Noise split over a Poisson cohort."""
    from fedveil.privacy.mechanisms import Gaussian
    from fedveil.privacy.sampling import FixedSize, Poisson
    from fedveil_lab.reproduction.claims import cheng

    clients, noise, rounds, delta = _need(args, "clients", "noise_multiplier", "rounds", "delta")
    rate = args.rate if args.rate is not None else _need(args, "cohort")[0] / clients
    claimed = cheng.paper_cheng_epsilon(
        noise_multiplier=noise, delta=delta, clients=clients, cohort=rate * clients, rounds=rounds,
        c2=args.c2,
    )  # fmt: skip
    secret, mechanism = Poisson(rate, clients), Gaussian(noise)
    average, shares = math.ceil(rate * rounds), max(1, math.floor(rate * clients))
    seen = f"cohorts of {shares}, {average} participations (the mean) enforced"
    unit = "client", "zero-out"
    return claimed, [
        _row("trusted aggregator, secret cohort", args, mechanism, secret, *unit),
        _row(
            f"untrusted server, {seen}", args, mechanism, FixedSize(clients, shares), *unit,
            "distributed", average,
        ),
        _row("untrusted server, amplified", args, mechanism, secret, *unit, "distributed"),
    ]  # fmt: skip


def _row(
    what: str,
    args: argparse.Namespace,
    mechanism: Any,
    sampling: Any,
    unit: str,
    adjacency: str,
    trust: str = "central",
    participations: int | None = None,
) -> tuple[str, Guarantee | None, str]:
    """Return one guarantee, or why there is none."""
    from fedveil.core.units import Adjacency, Trust, Unit
    from fedveil.privacy.accounting import account
    from fedveil.privacy.releases import PrivacyModel, Release

    given = {name: getattr(args, name) for name in ("population", "colluders", "honest_shares")}
    model = PrivacyModel(Unit(unit), Adjacency(adjacency), Trust(trust), **given)
    release = Release(mechanism, sampling, args.rounds, participations=participations)
    try:
        return what, account([release], privacy_model=model, delta=args.delta), ""
    except PrivacyRefusal as refusal:
        return what, None, str(refusal)


def _need(args: argparse.Namespace, *names: str) -> tuple[Any, ...]:
    """Return the values of these options, all of which must be there."""
    for name in names:
        if getattr(args, name) is None:
            raise ConfigError(f"--{name.replace('_', '-')}: --paper {args.paper} needs it")
    return tuple(getattr(args, name) for name in names)
