"""What every courier must do: subclass `CourierSuite` and say how to make one."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest

from fedveil.core.errors import ConfigError
from fedveil_federation.deploy.courier import Courier, Unreachable

LONG = 600.0  # seconds that nothing here takes, on a very busy machine either


class CourierSuite(ABC):
    """`courier` is the hub's end; a site is attached through whatever `attach` of it leads to."""

    @abstractmethod
    def make(self) -> Courier: ...

    @pytest.fixture
    def courier(self) -> Iterator[Courier]:
        made = self.make()
        yield made
        made.close()

    def test_bytes_come_back_as_they_were_sent(self, courier: Courier) -> None:
        courier.attach("a", lambda frame: b"a" + frame)
        courier.attach("b", lambda frame: b"b" + frame)
        large = bytes(range(256)) * 4096
        found = courier.ask({"a": b"\x00one\xff", "b": large}, LONG)
        assert found == {"a": b"a\x00one\xff", "b": b"b" + large}
        assert courier.ask({"a": b""}, LONG) == {"a": b"a"}
        assert courier.sites() == ("a", "b")

    def test_a_site_that_is_away_is_reported_and_holds_nobody_up(self, courier: Courier) -> None:
        courier.attach("a", lambda frame: frame)
        found = courier.ask({"a": b"x", "nobody": b"y"}, LONG)
        assert found["a"] == b"x"
        assert isinstance(found["nobody"], Unreachable)

    def test_a_late_site_is_reported_and_can_be_asked_again(self, courier: Courier) -> None:
        gate = threading.Event()

        def answer(frame: bytes) -> bytes:
            assert gate.wait(LONG)
            return frame

        courier.attach("slow", answer)
        courier.attach("quick", lambda frame: frame)
        found = courier.ask({"slow": b"1", "quick": b"2"}, 0.05)
        assert isinstance(found["slow"], Unreachable)
        gate.set()
        assert courier.ask({"slow": b"3", "quick": b"4"}, LONG) == {"slow": b"3", "quick": b"4"}

    def test_sites_are_asked_at_once_and_each_one_request_at_a_time(self, courier: Courier) -> None:
        both = threading.Barrier(2, timeout=LONG)
        within = threading.Lock()

        def answer(frame: bytes) -> bytes:
            assert within.acquire(blocking=False), "two requests of one site at once"
            within.release()
            return frame

        def meet(frame: bytes) -> bytes:
            both.wait()
            return frame

        courier.attach("a", meet)
        courier.attach("b", meet)
        assert courier.ask({"a": b"1", "b": b"2"}, LONG) == {"a": b"1", "b": b"2"}
        courier.attach("c", answer)
        threads = [threading.Thread(target=courier.ask, args=({"c": b"x"}, LONG)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert courier.ask({"c": b"y"}, LONG) == {"c": b"y"}

    def test_a_failing_site_fails_alone(self, courier: Courier) -> None:
        def fail(frame: bytes) -> bytes:
            raise RuntimeError("secret 42")

        courier.attach("a", fail)
        courier.attach("b", lambda frame: frame)
        found = courier.ask({"a": b"x", "b": b"y"}, LONG)
        assert isinstance(found["a"], Unreachable)
        assert "42" not in str(found["a"])
        assert found["b"] == b"y"

    def test_a_site_may_leave_and_come_back(self, courier: Courier) -> None:
        courier.attach("a", lambda frame: b"old")
        with pytest.raises(ConfigError, match="attached already"):
            courier.attach("a", lambda frame: frame)
        courier.detach("a")
        assert courier.sites() == ()
        assert isinstance(courier.ask({"a": b"x"}, LONG)["a"], Unreachable)
        courier.attach("a", lambda frame: b"new")
        assert courier.ask({"a": b"x"}, LONG) == {"a": b"new"}
