"""A page on loopback that grows: whoever does not know the secret in its address gets nothing.

Other accounts of the machine can connect to loopback, and so can a web page in the same browser, by
the address or by a name that it lets point here. The first do not know the secret; the second is
refused for its `Host`, or for the `Origin` that a browser puts into each form that is sent.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import parse_qsl

from fedveil.core.errors import FedveilError

_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    # No other site is told the address. With "no-referrer" a form would not name its own page.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NOT_YET = (
    "<!DOCTYPE html><html lang='en'><meta charset='utf-8'><meta http-equiv='refresh' content='1'>"
    "<title>fedveil</title><p>Nothing is written yet; this page asks again by itself.</p></html>"
)

_LONGEST_FORM = 10_000  # bytes

Made = Callable[[], str]
Act = Callable[[dict[str, str]], None]


@contextmanager
def served(make: Made, act: Act | None = None) -> Iterator[str]:
    """Serve a page on this machine until the block ends.

    Args:
        make: returns the page, each time it is asked for.
        act: does what a form of the page says, field by field; the page is shown again after it.

    Yields:
        The page's address.
    """
    secret, lock = secrets.token_urlsafe(24), Lock()
    handler = _handler(f"/{secret}/", _latest(make, lock), act, lock)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{secret}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _latest(make: Made, lock: Lock) -> Callable[[], str | None]:
    """The page now; the one before while files are being written; none before the first."""
    last = [""]

    def latest() -> str | None:
        with lock:  # one at a time: it is computed beside a training
            with suppress(FedveilError, OSError, ValueError):  # half of a round is on disk
                last[0] = make()
            return last[0] or None

    return latest


def _handler(
    place: str, latest: Callable[[], str | None], act: Act | None, lock: Lock
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedveil", ""
        timeout = 30  # a client that says nothing does not hold a thread for ever

        def do_GET(self) -> None:
            if not self._is_known():
                self._answer(HTTPStatus.NOT_FOUND, "")
                return
            page = latest()
            if page is None:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_YET)
            else:
                self._answer(HTTPStatus.OK, page)

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            # A browser names the page that a form was in, whatever that page wants.
            same_origin = self.headers.get("Origin") == f"http://{self.headers.get('Host')}"
            short = length.isdecimal() and len(length) < 6 and int(length) <= _LONGEST_FORM
            if act is None or not (self._is_known() and same_origin and short):
                self.close_connection = True  # what is left of it is not read
                self._answer(HTTPStatus.NOT_FOUND, "")
                return
            fields = dict(parse_qsl(self.rfile.read(int(length)).decode(errors="replace")))
            with lock:
                act(fields)
            self._answer(HTTPStatus.SEE_OTHER, "", Location=place)

        def _is_known(self) -> bool:
            """Whether somebody asks who knows the secret, and asks for this machine."""
            host, _, port = self.headers.get("Host", "").partition(":")
            here = host in ("127.0.0.1", "localhost") and port == str(self.server.server_port)  # type: ignore[attr-defined]
            return here and hmac.compare_digest(self.path.encode(), place.encode())

        def _answer(self, status: HTTPStatus, text: str, **headers: str) -> None:
            body = text.encode()
            self.send_response(status)
            for name, value in {**_HEADERS, **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal is the run's, and addresses hold the secret."""

    return Handler
