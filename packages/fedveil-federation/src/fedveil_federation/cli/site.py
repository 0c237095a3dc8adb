"""`fedveil site`: an owner's side of a federation across machines."""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil_federation.deploy.state_dirs import SiteHome

_PAUSE = 1.0  # seconds between two looks at the courier
_RECENT = 600.0  # seconds since a charge, after which a run is likely to go on
_SILENCE = 60.0  # seconds without a word from the hub, until the owner is told
_HOME: console.Options = {"--home DIR": (Path, "the site's directory (here)", Path())}
_ACTIONS: dict[str, tuple[str, list[str], console.Options]] = {
    "join": (
        "set this site up from the bundle that it was sent",
        ["BUNDLE that was made for this site"],
        {
            "--data FILE": (Path, "this owner's rows: CSV, Parquet or a saved federation"),
            "--person-column NAME": (str, "which person a row is of, to protect all of its rows"),
            "--schema FILE": (Path, "the schema as you know it; must be the bundle's"),
            "--policy FILE": (Path, "what this owner allows"),
            "--ledger DIR": (Path, "of a site with the same rows, which is charged for both"),
            "--key FILE": (Path, "to encrypt the store's secrets under (one in the directory)"),
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
        "show the plans that wait for this owner's yes, or answer one",
        [],
        {
            **_HOME,
            "--plan NAME": (str, "say yes to this one, for its next run"),
            "--refuse": (bool, "say no to it instead"),
            "--person NAME": (str, "who says yes, where the policy asks for several persons"),
        },
    ),
    "person": (
        "name somebody whose yes counts, where the policy asks for several persons",
        ["NAME of the person, who types a passphrase"],
        _HOME,
    ),
    "console": ("serve budget, history and plans that wait on a page of this machine", [], _HOME),
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
    acts |= {"approve": _approve, "person": _person, "console": _console}
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
    rows = agreement.rows(args.data, args.person_column)
    notes = agreement.schema.remarks(args.data, args.person_column)
    persons = None if rows.train.persons is None else int(rows.persons.sizes[0])
    path = args.home or Path(bundle.site)
    shared = None if args.ledger is None else SiteHome(args.ledger)
    SiteHome.create(
        path,
        bundle,
        args.data,
        args.policy,
        person_column=args.person_column,
        ledger=shared,
        key=args.key,
    )
    document = {
        "site": bundle.site,
        "federation": agreement.name,
        "home": str(path),
        "rows": len(rows.train),
        "persons": persons,
        "held_out": len(rows.test),
        "inputs": math.prod(agreement.schema.shape),
        "label": agreement.label,
        "notes": notes,
    }

    def show() -> None:
        console.say(f"site {bundle.site!r} of {agreement.name!r} is in {path}", heading="Joined:")
        label = f"; label {agreement.label!r}" if agreement.label else ""
        held = f", {len(rows.test):,} more are held out" if len(rows.test) else ""
        of = "" if persons is None else f" of {persons:,} persons"
        said = f"{len(rows.train):,}{of}, as {document['inputs']:,} inputs{label}{held}"
        console.say(said, heading="Rows:")
        for note in notes:
            console.say(note, heading="note:", colour="yellow")
        console.say(f"fedveil site start --home {path}", heading="Next:")

    return console.answer(args, document, show)


def _start(args: argparse.Namespace, home: SiteHome) -> int:
    console.prepare_training()
    from fedveil_federation.deploy import courier_process
    from fedveil_federation.deploy.logs import log_to_stderr
    from fedveil_federation.deploy.reading import read_apart
    from fedveil_federation.deploy.site_service import SiteService
    from fedveil_federation.deploy.sockets import SocketCourier

    if home.stopped and (home.path / "left").exists():
        raise ConfigError(f"{home.path}: {home.stopped}")
    log_to_stderr()
    with home.lock():
        if args.courier is not None or home.courier_is_separate:
            courier_process.separate_courier(home, args.courier or home.courier)
        process = courier_process.CourierProcess(home)
        # One that was charged a short time ago was killed in the middle of a run, it seems.
        if home.charged_within(min(_RECENT, args.rest)):
            threading.Thread(target=_load_libraries, daemon=True).start()
        service = SiteService(home, metrics=args.metrics, read=read_apart)
        courier_process.write_kit(home)
        courier = SocketCourier(
            home.socket, home.courier, separate=home.courier_is_separate, most=home.longest_request
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


def _load_libraries() -> None:
    """Load what looking at a plan takes, while the rows are read and the hub is reached."""
    from fedveil_federation.deploy.guard import EXAMINER

    for name in (EXAMINER, "dp_accounting.pld.privacy_loss_distribution"):
        import_module(name)


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
    from fedveil_federation.deploy.approvals import Approvals, Persons

    approvals, person = Approvals.of(home), "owner"
    if args.plan is not None:
        if home.policy.ask.persons > 1 and not args.refuse:
            person = args.person or ""
            Persons(home.path / "persons.json").check(person, _passphrase())
        enough = approvals.answer(args.plan, not args.refuse, person)
        said = "may begin; the hub asks again within a minute"
        if not enough:
            said = "is refused" if args.refuse else "waits for another person's yes"
        document = {"plan": args.plan, "may_begin": enough}
        return console.answer(args, document, lambda: console.say(said, heading=f"{args.plan}:"))
    waiting = {name: one.in_words() for name, one in approvals.waiting().items()}

    def show() -> None:
        for name, words in waiting.items():
            console.table(f"plan {name[:12]}", ["", ""], [*map(list, words.items())])
        said = "fedveil site approve --plan NAME" if waiting else "no plan waits"
        console.say(said, heading="Next:")

    return console.answer(args, {"waiting": waiting}, show)


def _person(args: argparse.Namespace, home: SiteHome) -> int:
    from fedveil_federation.deploy.approvals import Persons

    persons = Persons(home.path / "persons.json")
    persons.add(args.name, _passphrase())
    said = ", ".join(persons.names())
    document = {"persons": persons.names()}
    return console.answer(args, document, lambda: console.say(said, heading="Persons:"))


def _passphrase() -> str:
    """Ask at the terminal; a script gives it in a line of its standard input."""
    from getpass import getpass

    return getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")


def _console(args: argparse.Namespace, home: SiteHome) -> int:
    from fedveil_federation.deploy.console import console as served

    with suppress(KeyboardInterrupt), served(home) as address:
        # It is to be copied, so it is not wrapped; whoever knows it can say yes.
        print(f"Console: {address}", file=sys.stderr, flush=True)
        threading.Event().wait()
    return 0


def _ledger(args: argparse.Namespace, home: SiteHome) -> int:
    from fedveil.privacy.rounding import at_most
    from fedveil_federation.deploy.console import history

    document = history(home)

    def show() -> None:
        keys = ("begun", "name", "with", "what", "rounds")
        rows = [[str(one[key] or "") for key in keys] for one in document["runs"]]
        columns = ("begun (UTC)", "run", "with", "for", "sums taken part in")
        console.table(f"ledger of {home.site}", columns, rows)
        spent, whole = at_most(document["epsilon"]), document["budget_epsilon"]
        said = f"{spent} of {whole:g} at delta {document['delta']:g}, for {document['protects']}"
        console.say(said, heading="Lifetime epsilon:")

    return console.answer(args, document, show)


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
