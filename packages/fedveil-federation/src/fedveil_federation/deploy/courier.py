"""Couriers move opaque bytes between the hub and the sites. They are trusted with nothing: what
they carry is signed, and masked or noisy wherever it comes from data.

Another engine is a class with the same five methods that passes the same contract suite
(`tests/deploy/courier_suite.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fedveil.core.errors import ConfigError, FedveilError

COURIERS = ("https", "flare")  # what can carry the bytes; the first is the default
GROUP = "fedveil.couriers"  # the entry points of other packages' couriers
HUB = "server"  # the hub's name among the couriers; FLARE expects this one
KEYS = "keys.json"  # the keys by which the hub's courier knows each site, which may change
MAX_FRAME = 1 << 30  # bytes; couriers refuse more
Answer = Callable[[bytes], bytes]
T = TypeVar("T")


def place_of(courier: str) -> str:
    """Return the module of a courier.

    It has two functions, `hub_link(settings, place)` and `site_link(settings, place, answer)`.

    Args:
        courier: One of `COURIERS`, or the name of an entry point in the group `fedveil.couriers`.

    Raises:
        ConfigError: It is not installed.
    """
    if courier in COURIERS:
        return f"fedveil_federation.deploy.{courier}"
    from importlib.metadata import entry_points  # a courier's process loads as little as it can

    found = {one.name: one.value for one in entry_points(group=GROUP)}
    if courier not in found:
        raise ConfigError(f"courier {courier!r}: choose from {', '.join((*COURIERS, *found))}")
    return found[courier]


def most_reply(request: int) -> int:
    """Return how many bytes the reply to a request of so many bytes may have.

    The longest replies are updates. Their requests hold the weights, 4 bytes each; an update has at
    most 8 bytes for each weight, of which a rotation pads at most as many again. Everything else,
    such as the shares for a thousand sites, is short.
    """
    return min((4 << 20) + 4 * request, MAX_FRAME)


class Unreachable(FedveilError):
    """A site that did not answer in time; it may have got the request all the same."""


Reply = bytes | Unreachable | None


@dataclass(frozen=True)
class Settings:
    """The settings of a courier's process, in `link.json`.

    Attributes:
        engine: what carries the bytes, as `place_of` knows it.
        name: `HUB`, or the site's name as in its certificate.
        sites: the names of all sites.
        host: where sites reach the hub.
        port: the hub's port.
        socket: where the guard listens, or at the hub the courier.
        most: bytes that a request to this party may have.
    """

    engine: str
    name: str
    sites: tuple[str, ...]
    host: str
    port: int
    socket: str
    most: int


class Link(Protocol):
    """One party's end of a connection between machines: a courier's network side."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def present(self) -> tuple[str, ...]: ...
    def request(self, site: str, frame: bytes, seconds: float) -> bytes: ...


class Courier(ABC):
    """One hub and its sites. Requests may be lost or come twice: whoever answers is prepared."""

    @abstractmethod
    def attach(self, site: str, answer: Answer) -> None:
        """The site's end: requests for it go to `answer` from now on, one at a time."""

    @abstractmethod
    def detach(self, site: str) -> None:
        """The site is away until it is attached again."""

    @abstractmethod
    def sites(self) -> tuple[str, ...]:
        """Who seems to be there, by name."""

    @abstractmethod
    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        """One request to each of these sites, all at once; what came back of each in time."""

    def exchange(
        self, frames: Mapping[str, bytes], seconds: float, read: Callable[[str, Reply], T]
    ) -> dict[str, T]:
        """`ask`, and what `read` makes of each site's reply: as soon as it is there, if that can
        be. Long replies take a while to check, and the last one holds up nobody else's."""
        found = self.ask(frames, seconds)
        return {site: read(site, found.get(site)) for site in frames}

    @abstractmethod
    def close(self) -> None:
        """No more requests. Safe to call twice."""
