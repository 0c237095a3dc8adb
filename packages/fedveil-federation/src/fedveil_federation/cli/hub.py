"""`fedveil hub`: the process that carries out a federation's runs."""

from __future__ import annotations

import argparse
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.cli import console
from fedveil.cli.report import write_report

if TYPE_CHECKING:
    from fedveil.planning.recipe import Recipe
    from fedveil.run.run import Run

_PAUSE = 0.2  # seconds without anything to do
_ACTIONS: dict[str, tuple[str, list[str], console.Options]] = {
    "start": (
        "run the hub until it is told to stop; it goes on with what is in its queue",
        [],
        {
            "--home DIR": (Path, "the hub's directory (here)", Path()),
            "--courier DIR": (Path, "shared with the courier's own account, which runs it"),
            "--listen PORT": (int, "if that is another one than sites reach; it is remembered"),
            "--metrics DIR": (Path, "for counters that node_exporter can read"),
            "--watch": (bool, "serve the newest run's growing report on this machine"),
        },
    ),
    "courier": (
        "carry bytes between hub and sites; under an account that can read nothing else",
        ["DIR that `hub start --courier` names"],
        {},
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    console.add_actions(parser, _ACTIONS)


def execute(args: argparse.Namespace) -> int:
    if args.action == "start":
        return _start(args)
    from fedveil_federation.deploy.carry import carry

    carry(Path(args.dir))
    return 0


def _start(args: argparse.Namespace) -> int:
    os.umask(0o077)
    console.prepare_training()
    from fedveil.cli.report import watched_apart
    from fedveil_federation.deploy import courier_process
    from fedveil_federation.deploy.logs import log_to_stderr
    from fedveil_federation.deploy.sockets import SocketCourier, check_free
    from fedveil_federation.deploy.state_dirs import HubHome

    home = HubHome(args.home)
    log_to_stderr()
    with home.lock(), watched_apart(home.runs, newest=True) if args.watch else nullcontext():
        if args.courier is not None or home.courier_is_separate:
            courier_process.separate_courier(home, args.courier or home.courier)
        if args.listen is not None:
            home.listen_at(args.listen)
        process = courier_process.CourierProcess(home)
        if not home.courier_is_separate:
            check_free(home.port)
        try:
            process.keep_running()  # sites connect while this process loads torch
            from fedveil_federation.deploy.hub_service import HubService

            courier = SocketCourier(home.socket, home.courier)
            service = HubService(home, courier, finish, metrics=args.metrics)
            service.tend = process.keep_running  # a run may take hours
            service.welcome()
            if not home.courier_is_separate:
                courier_process.warn_of_one_account()
            idle = threading.Event()
            while True:
                process.keep_running()
                if not service.step():
                    idle.wait(_PAUSE)
        finally:
            process.stop()


def finish(run: Run, recipe: Recipe) -> None:
    """Write what `fedveil run` leaves behind: model, result and report."""
    from fedveil.report.result import result_of

    result_of(run, recipe, 0.0)
    if run.directory is not None:
        write_report(run.directory.path)
