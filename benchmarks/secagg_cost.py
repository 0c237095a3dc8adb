"""What one round costs: `python -m benchmarks.secagg_cost [--devices N] [--dimension D] [--lying]`.

Every frame is passed between real state machines, and the time of the server and of the devices is
kept apart: server seconds, milliseconds and bytes per device, memory at the peak of this process
(which holds all devices as well). Times are CPU times, of the second of two rounds. `--lying` plans
the graph for a server that may lie; without it, for one that does not.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedveil.secagg.mode import Mode
from fedveil.secagg.params import SecAggParams
from fedveil.secagg.simulation import Simulation


class Meter:
    """Seconds by side, and bytes by direction."""

    def __init__(self) -> None:
        self.seconds = {"server": 0.0, "device": 0.0}
        self.up = self.down = 0

    def server(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return self._timed("server", act, *arguments)

    def device(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return self._timed("device", act, *arguments)

    def asked(self, act: Callable[[bytes], Any], frame: bytes) -> Any:
        """A device is sent a frame and answers."""
        self.down += len(frame)
        return self.device(act, frame)

    def told(self, act: Callable[[bytes], Any], frame: bytes) -> Any:
        """The server is sent a frame."""
        self.up += len(frame)
        return self.server(act, frame)

    def _timed(self, side: str, act: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        result = act(*arguments)
        self.seconds[side] += time.process_time() - start
        return result


def play(
    simulation: Simulation, round_number: int, count: int, dimension: int, lost: float
) -> Meter:
    meter, server, devices = Meter(), simulation._server, simulation._devices
    details = (round_number, range(count), dimension, 32)
    if simulation.params.topology(count).complete:
        opened = meter.server(server.open, *details)
    else:
        drawing = meter.server(server.draw, *details)
        for device in drawing.drawers:
            frame = meter.asked(devices[device].offer, drawing.invitation)
            meter.told(drawing.commit, frame)
        listed = meter.server(drawing.commitments)
        for device in drawing.drawers:
            meter.told(drawing.reveal, meter.asked(devices[device].reveal, listed))
        opened = meter.server(server.open_drawn, drawing)
    rounds = {}
    for device in range(count):
        rounds[device] = meter.asked(devices[device].join, opened.plan)
        meter.told(opened.receive, rounds[device].shares)
    meter.server(opened.close_sharing)
    base = np.arange(dimension, dtype=np.int64)
    gone = {int(i / lost) for i in range(int(count * lost))} if lost else set()
    for device in range(count):
        frame = meter.server(opened.sharers_for, device)
        meter.asked(rounds[device].take_sharers, frame)
        if device not in gone:
            meter.told(opened.receive, meter.device(rounds[device].mask, base + device))
    meter.server(opened.close_upload)
    for device in opened.survivors:
        frame = meter.server(opened.survivors_for, device)
        meter.told(opened.receive, meter.asked(rounds[device].confirm, frame))
    meter.server(opened.close_confirmation)
    for device in opened.confirmed:
        frame = meter.server(opened.confirmed_for, device)
        meter.told(opened.receive, meter.asked(rounds[device].unmask, frame))
    total = meter.server(opened.finish)
    alive = [device for device in range(count) if device not in gone]
    if not np.array_equal(total, base * len(alive) + sum(alive)):
        raise RuntimeError("the sum is wrong")
    return meter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--lost", type=float, default=0.05)
    parser.add_argument("--lying", action="store_true", help="plan for a server that may lie")
    asked = parser.parse_args()
    count = asked.devices
    params = SecAggParams(
        "bench", count // 2, count // 20, 0.1, sparse=True, honest_server=not asked.lying
    )
    simulation = Simulation(params, Mode.FULL)
    simulation.enrol(range(count))
    for round_number in range(2):
        meter = play(simulation, round_number, count, asked.dimension, asked.lost)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count} devices x {asked.dimension}, {asked.lost:.0%} lost, degree "
        f"{params.topology(count).degree}: server {meter.seconds['server']:.2f} s; a device "
        f"{1e3 * meter.seconds['device'] / count:.1f} ms, {meter.up / count / 1e3:.1f} kB up, "
        f"{meter.down / count / 1e3:.1f} kB down; {peak:.0f} MB"
    )


if __name__ == "__main__":
    main()
