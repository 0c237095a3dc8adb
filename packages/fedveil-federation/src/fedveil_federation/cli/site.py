"""`fedveil site`: an owner's side of a federation across machines."""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil_federation.deploy.state_dirs import SiteHome

_PAUSE = 1.0  # seconds between two looks at the courier
_SILENCE = 60.0  # seconds without a word from the hub, until the owner is told
_HOME: console.Options = {"--home DIR": (Path, "the site's directory (here)", Path())}
_ACTIONS: dict[str, tuple[str, list[str], console.Options]] = {
    "join": (
        "set this site up from the bundle that it was sent",
        ["BUNDLE that was made for this site"],
        {
            "--data FILE": (Path, "this owner's rows: CSV, Parquet or a saved federation"),
            "--schema FILE": (Path, "the schema as you know it; must be the bundle's"),
            "--policy FILE": (Path, "what this owner allows"),
            "--home DIR": (Path, "a new directory for the site (./SITE)"),
        },
    ),
    "start": (
        "answer the hub until told to stop",
        [],
        {
            **_HOME,
            "--courier DIR": (Path, "shared with the courier's own account, which runs it"),
            "--metrics DIR": (Path, "for counters that node_exporter can read"),
            "--rest SECONDS": (float, "without a run, to give memory back (3600)", 3600.0),
        },
    ),
    "courier": (
        "carry bytes between guard and hub; under an account that can read nothing else",
        ["DIR that `site start --courier` names"],
        {},
    ),
    "members": ("whom the hub proposes, or this site trusts", [], _HOME),
    "trust": (
        "confirm the members' list that the other owners have too",
        ["FINGERPRINT as they read it to you"],
        _HOME,
    ),
    "approve": (
        "show the plans that wait for this owner's yes, or say it",
        [],
        {**_HOME, "--plan NAME": (str, "say yes to this one, for its next run")},
    ),
    "ledger": ("what this owner has spent, and on which runs", [], _HOME),
    "pause": ("take part in nothing for now", [], _HOME),
    "resume": ("take part again", [], _HOME),
    "renew": (
        "a fresh key for masks; between runs",
        [],
        {**_HOME, "--certificate FILE": (Path, "take this certificate from the hub instead")},
    ),
    "restore": (
        "bring a directory from a backup up to date, and charge what was spent since",
        [],
        {
            **_HOME,
            "--exhaust": (bool, "allow nothing any more: it is not known what was spent since"),
        },
    ),
    "leave": ("leave the federation for good; the ledger stays", [], _HOME),
}


def configure(parser: argparse.ArgumentParser) -> None:
    console.add_actions(parser, _ACTIONS)


def execute(args: argparse.Namespace) -> int:
    os.umask(0o077)
    if args.action == "join":
        return _join(args)
    if args.action == "courier":
        from fedveil_federation.deploy.carry import carry

        carry(Path(args.dir))
        return 0
    from fedveil_federation.deploy.state_dirs import SiteHome

    home = SiteHome(args.home)
    acts = {"start": _start, "members": _members, "trust": _trust, "ledger": _ledger}
    acts["approve"] = _approve
    return acts.get(args.action, _change)(args, home)


def _join(args: argparse.Namespace) -> int:
    for option in ("data", "policy"):
        if getattr(args, option) is None:
            raise ConfigError(f"--{option}: say which")
    from fedveil_federation.deploy.policy import Policy
    from fedveil_federation.deploy.schemas import read_schema_file
    from fedveil_federation.deploy.state_dirs import Bundle, SiteHome

    bundle = Bundle.read(Path(args.bundle))
    agreement = bundle.agreement
    Policy.read(args.policy).check_hub(agreement.hub)  # before rows are read, which takes longer
    agreed = {"arrays": agreement.arrays} if agreement.arrays else {"columns": agreement.columns}
    if args.schema is not None and read_schema_file(args.schema) != agreed:
        raise ConfigError(f"--schema {args.schema}: says something else than the bundle's schema")
    rows = agreement.rows(args.data)
    notes = agreement.schema.remarks(args.data)
    path = args.home or Path(bundle.site)
    SiteHome.create(path, bundle, args.data, args.policy)
    document = {
        "site": bundle.site,
        "federation": agreement.name,
        "home": str(path),
        "rows": len(rows.train),
        "held_out": len(rows.test),
        "inputs": math.prod(agreement.schema.shape),
        "label": agreement.label,
        "notes": notes,
    }

    def show() -> None:
        console.say(f"site {bundle.site!r} of {agreement.name!r} is in {path}", heading="Joined:")
        label = f"; label {agreement.label!r}" if agreement.label else ""
        held = f", {len(rows.test):,} more are held out" if len(rows.test) else ""
        said = f"{len(rows.train):,}, as {document['inputs']:,} inputs{label}{held}"
        console.say(said, heading="Rows:")
        for note in notes:
            console.say(note, heading="note:", colour="yellow")
        console.say(f"fedveil site start --home {path}", heading="Next:")

    return console.answer(args, document, show)


def _start(args: argparse.Namespace, home: SiteHome) -> int:
    console.prepare_training()
    from fedveil_federation.deploy import courier_process
    from fedveil_federation.deploy.logs import log_to_stderr
    from fedveil_federation.deploy.site_service import SiteService
    from fedveil_federation.deploy.sockets import SocketCourier

    if home.stopped and (home.path / "left").exists():
        raise ConfigError(f"{home.path}: {home.stopped}")
    log_to_stderr()
    with home.lock():
        if args.courier is not None or home.courier_is_separate:
            courier_process.separate_courier(home, args.courier or home.courier)
        process = courier_process.CourierProcess(home)
        service = SiteService(home, metrics=args.metrics)
        courier_process.write_kit(home)
        courier = SocketCourier(
            home.socket,
            home.courier,
            separate=home.courier_is_separate,
            most=home.longest_request,
        )
        courier.attach("fedveil", service.answer)
        service.welcome()
        courier_process.warn_of_readable_rows(home.data)
        if not home.courier_is_separate:
            courier_process.warn_of_one_account()
        wait, quiet = threading.Event(), monotonic() + _SILENCE
        try:
            while not (home.path / "left").exists():
                if service.rested(args.rest):  # begin anew, without torch and what runs needed
                    for part in (courier.close, service.close, process.stop):
                        part()
                    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
                process.keep_running()
                if not service.heard and monotonic() > quiet:
                    service.complain()
                    quiet = math.inf
                wait.wait(_PAUSE)
            return 0
        finally:
            courier.close()
            process.stop()


def _members(args: argparse.Namespace, home: SiteHome) -> int:
    members, trusted = home.members or home.proposed, home.members is not None
    if members is None:
        raise ConfigError("members: the hub has sent no list yet; start the site and wait")
    sites = {name: key.hex() for name, key in members.sites.items()}
    document = {"fingerprint": members.fingerprint, "trusted": trusted, "sites": sites}

    def show() -> None:
        rows = [(name, key[:16]) for name, key in sites.items()]
        console.table(f"members of {members.federation}", ("site", "key"), rows)
        console.say(members.fingerprint, heading="Fingerprint:")
        if not trusted:
            said = "call the other owners; if all read the same: fedveil site trust FINGERPRINT"
            console.say(said, heading="Next:")

    return console.answer(args, document, show)


def _trust(args: argparse.Namespace, home: SiteHome) -> int:
    members = home.trust(args.fingerprint)
    document = {"fingerprint": members.fingerprint, "trusted": True}
    said = f"{members.federation}: {', '.join(members.names)}"
    return console.answer(args, document, lambda: console.say(said, heading="Trusted:"))


def _approve(args: argparse.Namespace, home: SiteHome) -> int:
    from fedveil.privacy.rounding import at_most
    from fedveil_federation.deploy.approvals import Approvals, in_words

    approvals = Approvals(home.path / "approvals")
    waiting = {name: in_words(plan) for name, plan in approvals.waiting().items()}
    if args.plan is not None:
        approvals.approve(args.plan)
        said = "may begin; the hub asks again within a minute"
        document = {"plan": args.plan, **waiting[args.plan]}
        return console.answer(args, document, lambda: console.say(said, heading=f"{args.plan}:"))
    ledger = home.store().ledger
    left = f"{at_most(ledger.spent())} of {ledger.budget_epsilon:g} spent, of all runs together"

    def show() -> None:
        for name, words in waiting.items():
            rows = [*map(list, words.items()), ["lifetime epsilon", left]]
            console.table(f"plan {name}", ["", ""], rows)
        said = "fedveil site approve --plan NAME" if waiting else "no plan waits"
        console.say(said, heading="Next:")

    return console.answer(args, {"lifetime": left, "waiting": waiting}, show)


def _ledger(args: argparse.Namespace, home: SiteHome) -> int:
    from fedveil.privacy.rounding import at_most

    ledger, federation = home.store().ledger, home.agreement.name
    spent = ledger.spent()
    runs = [
        {"run": run, "with": federation, "rounds": rounds, **_about(home.plan(run))}
        for run, rounds in ledger.runs().items()
    ]
    document: dict[str, Any] = {
        "site": home.site,
        "unit": str(ledger.unit),
        "epsilon": spent,
        "budget_epsilon": ledger.budget_epsilon,
        "delta": ledger.delta,
        "runs": runs,
    }

    def show() -> None:
        rows = [
            (one["run"][:16], one["with"], str(one["what"]), str(one["rounds"])) for one in runs
        ]
        columns = ("run", "with", "for", "sums taken part in")
        console.table(f"ledger of {home.site}", columns, rows)
        whole = f"{at_most(spent)} of {document['budget_epsilon']:g} at delta {ledger.delta:g}"
        console.say(f"{whole}, for one {ledger.unit}", heading="Lifetime epsilon:")

    return console.answer(args, document, show)


def _about(plan: dict[str, Any] | None) -> dict[str, Any]:
    """What a run was for, and what all of it may cost by itself."""
    try:
        found = plan or {}
        what = "evaluation" if found["scoring"] else found["recipe"]["training"]["method"]
        model = found["recipe"]["model"]["name"]
        return {"what": what, "model": model, "planned_epsilon": found["epsilon"]}
    except (KeyError, TypeError):
        return {"what": None, "model": None, "planned_epsilon": None}


def _change(args: argparse.Namespace, home: SiteHome) -> int:
    """Pause, resume, renew, restore, leave."""
    from fedveil_federation.deploy.state_dirs import read_text

    if args.action == "leave":
        home.leave()
    elif args.action == "restore":
        with home.lock():
            missing = home.restore(args.exhaust)
    elif args.action == "renew":
        with home.lock():  # a guard that runs would go on with the old one
            if args.certificate is None:
                home.store().renew(f"fedveil/{home.agreement.name}")
            elif not home.take_certificate(read_text(args.certificate)):
                raise ConfigError(f"{args.certificate}: lasts no longer than what is here")
    else:
        home.pause(args.action == "pause")
    document: dict[str, Any] = {"site": home.site, "stopped": home.stopped}
    if args.action == "restore":
        document["events"] = missing
        said = (
            "allows nothing any more" if args.exhaust else f"lacked {missing} events of its ledger"
        )
        return console.answer(args, document, lambda: console.say(said, heading=f"{home.site}:"))
    fresh = "has a fresh key" if vars(args).get("certificate") is None else "can be started again"
    said = home.stopped or ("takes part" if args.action == "resume" else fresh)
    return console.answer(args, document, lambda: console.say(said, heading=f"{home.site}:"))
