"""`fedveil account --paper`: what a paper would have claimed, beside what is proved."""

from __future__ import annotations

import argparse
import math
from typing import Any

from fedveil.cli import console
from fedveil.cli import mechanism_args as described
from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accounting import account
from fedveil.privacy.gradient_perturbation import NoisyGradients, record_uses
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.rounding import at_most
from fedveil.privacy.sampling import Balanced, FixedSize, Poisson, RoundRobin
from fedveil_lab.cli import needed
from fedveil_lab.reproduction.claims import Claim, cheng, fu, hu, liang

Row = tuple[str, Guarantee | None, str]  # what is proved, or why nothing is


def compare(args: argparse.Namespace) -> int:
    """Print the paper's claim and every guarantee that holds for the same noise."""
    try:
        claimed, proved = _SIDES[args.paper](args)
    except FedveilError:
        raise
    except (ValueError, ArithmeticError):
        raise ConfigError(
            f"--paper: the formulas of {args.paper} break down at such numbers"
        ) from None
    documents = [
        {"what": what, "epsilon": None, "certified": False, "reason": refusal}
        if guarantee is None
        else {"what": what, **guarantee.to_dict()}
        for what, guarantee, refusal in proved
    ]
    document = {**documents[0], "claimed": claimed.to_dict(), "proved": documents}
    return console.answer(args, document, lambda: _show(claimed, proved))


def _show(claimed: Claim, proved: list[Row]) -> None:
    rows = [(f"claimed by {claimed.paper}", f"{claimed.value:.6g}", "no")]
    notes = [f"The claim: {claimed.verdict}."]
    for what, guarantee, refusal in proved:
        if guarantee is None:
            rows.append((what, "refused", "no"))
        else:
            certified = "yes" if guarantee.certified else "no"
            rows.append((what, at_most(guarantee.epsilon, 6), certified))
        reason = refusal if guarantee is None else guarantee.reason
        if reason:
            notes.append(f"{what.capitalize()}: {reason}.")
    title = f"{claimed.paper}, {claimed.statement}: claimed and proved"
    console.table(title, ("", "epsilon", "certified"), rows)
    for note in notes:
        console.say(note)
    proofs = [guarantee for _, guarantee, _ in proved if guarantee is not None]
    for head, name in (("rests on", "rests_on"), ("does not cover", "not_covered")):
        lines = dict.fromkeys(line for proof in proofs for line in getattr(proof, name))
        told = "".join(f"\n- {line}" for line in lines)
        console.say(f"What is proved {head}, each as far as it applies:{told}")


def _fu(args: argparse.Namespace) -> tuple[Claim, list[Row]]:
    """Local noise, round robin, whole gradients clipped."""
    noise = "noise_multiplier"
    if laplace := described.mechanism_kind(args) == "laplace":
        noise = "scale_multiplier"
    run = _needed(args, "clients", "cohort", "rounds", "delta", noise)
    delta, scale = run.pop("delta"), run.pop(noise)
    turns = fu.paper_fu_participations(**run).value
    claimed = (
        fu.paper_fu_laplace_epsilon(scale, turns)
        if laplace
        else fu.paper_fu_gaussian_epsilon(scale, turns, delta, args.c2)
    )
    rest = described.mechanism_of(args), RoundRobin(args.clients, args.cohort)
    adjacencies = ("replace", "zero-out")
    return claimed, [
        _row(f"local, {one}", args, *rest, "client", one, "local") for one in adjacencies
    ]


def _hu(args: argparse.Namespace) -> tuple[Claim, list[Row]]:
    """Noise on every gradient, one record protected, secure sum."""
    numbers = ("local_steps", "cohort", "records", "batch_size")
    run = _needed(args, *numbers, "clients", "rounds", "delta", "clip_norm", "gradient_std")
    clients, rounds, clip, std = args.clients, args.rounds, args.clip_norm, args.gradient_std
    steps, cohort, records, batch = (run[name] for name in numbers)
    claimed = hu.paper_hu_epsilon(
        delta=args.delta,
        participations=cohort * rounds / clients,  # the mean, as the paper does
        gradient_bound=clip,
        noise_std=std,
        **{name: run[name] for name in numbers},
    )
    uses = record_uses(local_steps=steps, records=records, batch_size=batch)
    mechanism = NoisyGradients(clip, batch, std, steps, uses, shares=cohort)
    rest = args, mechanism, Balanced(clients, cohort, rounds), "record", "replace"
    return claimed, [
        _row("any model, undivided", *rest, "local"),
        _row(f"divided by the shares, {steps} local steps", *rest, "distributed"),
    ]


def _liang(args: argparse.Namespace) -> tuple[Claim, list[Row]]:
    """Central noise on a sampled sum."""
    who = "rate" if args.cohort is None and args.rate is not None else "cohort"
    run = _needed(args, "clients", "noise_multiplier", "rounds", "delta", who)
    clients, noise, kind = args.clients, args.noise_multiplier, args.sampling or "fixed"
    if who == "rate":
        run["cohort"] = round(run.pop("rate") * clients)
    cohort = run["cohort"]
    claimed = liang.paper_liang_epsilon(**run, sampling=kind)
    if kind == "poisson":
        rest = Poisson(cohort / clients, clients), "client", "zero-out"
        return claimed, [_row("noise z*G on the sum", args, Gaussian(noise), *rest)]
    given = FixedSize(clients, cohort), "client", "replace"
    return claimed, [
        _row("noise z*G on the sum", args, Gaussian(noise), *given),
        _row("noise 2z*G on the sum", args, Gaussian(2 * noise), *given),
    ]


def _cheng(args: argparse.Namespace) -> tuple[Claim, list[Row]]:
    """Noise split over a Poisson cohort."""
    who = "cohort" if args.rate is None and args.cohort is not None else "rate"
    run = _needed(args, "clients", "noise_multiplier", "rounds", "delta", who)
    clients, rounds, noise = args.clients, args.rounds, args.noise_multiplier
    rate = run.pop("rate") if who == "rate" else run["cohort"] / clients
    claimed = cheng.paper_cheng_epsilon(**run | {"cohort": rate * clients}, c2=args.c2)
    secret, unit = (args, Gaussian(noise), Poisson(rate, clients)), ("client", "zero-out")
    average, shares = math.ceil(rate * rounds), max(1, math.floor(rate * clients))
    seen = f"untrusted server, cohorts of {shares}, {average} participations (the mean) enforced"
    fixed = args, Gaussian(noise), FixedSize(clients, shares)
    return claimed, [
        _row("trusted aggregator, secret cohort", *secret, *unit),
        _row(seen, *fixed, *unit, "distributed", average),
        _row("untrusted server, amplified", *secret, *unit, "distributed"),
    ]


_SIDES = {"fu": _fu, "hu": _hu, "liang": _liang, "cheng": _cheng}


def _row(
    what: str,
    args: argparse.Namespace,
    mechanism: Any,
    sampling: Any,
    unit: str,
    adjacency: str,
    trust: str = "central",
    participations: int | None = None,
) -> Row:
    """Return one guarantee, or why there is none."""
    given = {name: getattr(args, name) for name in ("population", "colluders", "honest_shares")}
    model = PrivacyModel(Unit(unit), Adjacency(adjacency), Trust(trust), **given)
    release = Release(mechanism, sampling, args.rounds, participations=participations)
    try:
        return what, account([release], privacy_model=model, delta=args.delta), ""
    except PrivacyRefusal as refusal:
        return what, None, str(refusal)


def _needed(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    return needed(args, f"--paper {args.paper}", *names)
