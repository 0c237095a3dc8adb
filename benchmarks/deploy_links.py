"""A TCP proxy that stands for a bad connection between machines."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress


class Link:
    """A TCP proxy whose connections end after some bytes, carry few bytes at a time, or none.

    All of it may be changed while connections are open.

    Args:
        target: the port of this machine where it connects to.
        lasts: the least and the most bytes after which a connection is cut; None: never.
        piece: the bytes of one step; 0: as they come.
        delay: seconds of a step.
    """

    def __init__(
        self,
        target: int,
        lasts: tuple[int, int] | None = None,
        piece: int = 0,
        delay: float = 0.0,
        port: int = 0,
    ) -> None:
        self.target, self.lasts, self.piece, self.delay = target, lasts, piece, delay
        self.cuts = 0
        self._draw, self._ended, self._cut = random.Random(7), threading.Event(), False
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and let nobody through until `mend`."""
        self._cut = True
        for one in tuple(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections through again."""
        self._cut = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self._cut:
                    near.close()
                    continue
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        left = [self._draw.randint(*self.lasts) if self.lasts else 1 << 60]
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as far:
            self._open |= {near, far}
            back = threading.Thread(target=self._pump, args=(far, near, left), daemon=True)
            back.start()
            self._pump(near, far, left)
            back.join()
            self._open -= {near, far}

    def _pump(self, of: socket.socket, to: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while left[0] > 0 and (part := of.recv(min(self.piece or 1 << 16, left[0]))):
                self._ended.wait(self.delay)  # how long the link takes
                to.sendall(part)
                left[0] -= len(part)
            self.cuts += left[0] <= 0
        for one in (of, to):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Listen no more; open connections go on without delay."""
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
