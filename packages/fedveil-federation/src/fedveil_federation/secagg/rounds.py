"""One simulated round of the protocol."""

from __future__ import annotations

import random
from collections.abc import Callable

from fedveil.privacy.secure_sums.errors import Doubted, NotReleased, RuleBroken
from fedveil.privacy.secure_sums.masks import IntVector
from fedveil.privacy.secure_sums.stopwatch import Stopwatch
from fedveil.run.ideal_sum import OpenRound, Setting
from fedveil_federation.secagg.device import DeviceRound
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.server import Server
from fedveil_federation.secagg.server_round import ServerRound


class MaskedRound(OpenRound):
    """Every frame of a round, passed between real state machines."""

    def __init__(
        self,
        setting: Setting,
        watch: Stopwatch,
        before: dict[str, float],
        server: Server,
        devices: dict[int, Participant],
    ) -> None:
        super().__init__(setting, watch, before)
        self._devices: dict[int, DeviceRound] = {}
        dropouts = setting.dropouts
        with watch.phase("share"):
            self._server = self._opened(server, devices)
            for member in setting.members:
                if member not in dropouts.before_sharing:
                    self._devices[member] = devices[member].join(self._server.plan)
                    self._server.receive(self._devices[member].shares)
            self._server.close_sharing()
            self.wanted = tuple(
                member
                for member in self._devices
                if self._agrees(member, self._take_sharers) and member not in dropouts.before_upload
            )

    def _opened(self, server: Server, devices: dict[int, Participant]) -> ServerRound:
        """The round, its graph drawn by devices if it is sparse."""
        setting = self.setting
        details = (
            setting.round_number,
            setting.members,
            setting.dimension,
            setting.bits,
            setting.purpose,
        )
        count = setting.params.drawers(len(setting.members), setting.topology.degree)
        if not count:
            return server.open(*details)
        present = [m for m in setting.members if m not in setting.dropouts.before_sharing]
        if len(present) < count:
            raise NotReleased(f"{len(present)} devices are there, {count} must draw the graph")
        drawing = server.draw(*details, random.SystemRandom().sample(present, count))
        for device in drawing.drawers:
            drawing.commit(devices[device].offer(drawing.invitation))
        listed = drawing.commitments()
        for device in drawing.drawers:
            drawing.reveal(devices[device].reveal(listed))
        return server.open_drawn(drawing)

    def _take_sharers(self, device: int) -> None:
        self._devices[device].take_sharers(self._server.sharers_for(device))

    def _upload(self, device: int, vector: IntVector) -> None:
        with self._watch.phase("mask"):
            frame = self._devices[device].mask(vector)
        with self._watch.phase("add"):
            self._server.receive(frame)

    def _unmask(self) -> IntVector:
        dropouts = self.setting.dropouts
        with self._watch.phase("confirm"):
            self._server.close_upload()
            if self._server.confirms:
                for device in self._server.survivors:
                    if device not in dropouts.before_confirming:
                        self._agrees(device, self._confirm)
                self._server.close_confirmation()
        silent = dropouts.before_unmasking | dropouts.before_confirming
        with self._watch.phase("unmask"):
            for device in self._server.confirmed:
                if device not in silent:
                    self._agrees(device, self._give_shares)
            return self._server.finish()

    def _confirm(self, device: int) -> None:
        joined = self._devices[device]
        try:
            frame = joined.confirm(self._server.survivors_for(device))
        except Doubted as refusal:
            frame = joined.confirm(self._server.survivors_for(device, refusal.devices))
        self._server.receive(frame)

    def _give_shares(self, device: int) -> None:
        server = self._server
        told = server.confirmed_for if server.confirms else server.survivors_for
        server.receive(self._devices[device].unmask(told(device)))

    @staticmethod
    def _agrees(device: int, act: Callable[[int], None]) -> bool:
        """Whether the device went along; one that refuses is as good as lost."""
        try:
            act(device)
        except RuleBroken:
            return False
        return True
