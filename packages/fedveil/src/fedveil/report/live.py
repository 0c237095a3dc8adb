"""A page that grows, on loopback: whoever does not know the secret in its address gets nothing."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

from fedveil.core.errors import FedveilError

_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # a link that is followed does not tell the address
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NOT_YET = (
    "<!DOCTYPE html><html lang='en'><meta charset='utf-8'><meta http-equiv='refresh' content='1'>"
    "<title>fedveil</title><p>Nothing is written yet; this page asks again by itself.</p></html>"
)

Made = Callable[[], str]


@contextmanager
def served(make: Made) -> Iterator[str]:
    """Serve what `make` returns, each time it is asked for, under the address that is given."""
    secret = secrets.token_urlsafe(24)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(f"/{secret}/", _latest(make)))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{secret}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _latest(make: Made) -> Callable[[], str | None]:
    """The page now; the one before while files are being written; none before the first."""
    lock, kept = Lock(), [""]

    def latest() -> str | None:
        with lock:  # one at a time: it is computed beside a training
            with suppress(FedveilError, OSError, ValueError):  # half of a round is on disk
                kept[0] = make()
            return kept[0] or None

    return latest


def _handler(place: str, latest: Callable[[], str | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedveil", ""
        timeout = 30  # a client that says nothing does not hold a thread for ever

        def do_GET(self) -> None:
            host, _, port = self.headers.get("Host", "").partition(":")
            here = host in ("127.0.0.1", "localhost") and port == str(self.server.server_port)  # type: ignore[attr-defined]
            if not here or not hmac.compare_digest(self.path.encode(), place.encode()):
                self._answer(HTTPStatus.NOT_FOUND, "")
                return
            page = latest()
            if page is None:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_YET)
            else:
                self._answer(HTTPStatus.OK, page)

        def _answer(self, status: HTTPStatus, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal is the run's, and addresses hold the secret."""

    return Handler
