"""A headless Chromium, driven over a pipe by its DevTools protocol; needs no Python package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 300.0  # seconds for one answer: only a browser that hangs takes so long
AXE = Path(os.environ.get("AXE_CORE") or Path(sys.prefix) / "axe-core" / "package" / "axe.min.js")
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="no axe-core here: `make .venv/axe-core`")
needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, NAMES)),
    reason="no Chromium here: install it with apt-get install chromium",
)
_KEYS = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowRight": 39}


def installed() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One tab. `problems` has every console error, exception and failed or attempted request."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def wire() -> None:  # the browser reads from 3 and writes to 4
            reader, writer = os.dup(to_read), os.dup(to_write)
            os.dup2(reader, 3)
            os.dup2(writer, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        flags += ["--disable-dev-shm-usage", "--disable-background-networking"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            [program, *flags],
            close_fds=False,
            preexec_fn=wire,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, place: Path | str) -> None:
        """A file, or an address."""
        self._events.clear()
        url = place if isinstance(place, str) else place.resolve().as_uri()
        if problem := self.call("Page.navigate", url=url).get("errorText"):
            raise RuntimeError(f"{url}: {problem}")
        self._await_page()

    def send(self, button: str) -> None:
        """Press a button that sends a form, and wait for the page that comes of it."""
        self._events.clear()
        self.run(f"document.querySelector({json.dumps(button)}).click()")
        self._await_page()

    def _await_page(self) -> None:
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def until(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        until = time.monotonic() + PATIENCE
        while not self.run(f"new Promise(done => setTimeout(() => done({script}), 50))"):
            if time.monotonic() > until:
                raise TimeoutError(script)

    def settle(self) -> None:
        """Wait until nothing moves any more: what a theme fades in is there."""
        self.run("Promise.all(document.getAnimations().map(a => a.finished.catch(() => 0)))")
        self.run("new Promise(done => setTimeout(done, 300)).then(() => 0)")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, what it becomes."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def look(self, width: int = 1000, height: int = 800, **media: str) -> None:
        """Set the size of the window, and media such as prefers-color-scheme."""
        features = [{"name": k.replace("_", "-"), "value": v} for k, v in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def press(self, key: str) -> None:
        """A key of a real keyboard: focus moves, buttons are pressed."""
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        code: dict[str, Any] = {"code": key, "windowsVirtualKeyCode": _KEYS[key]}
        code["key"] = " " if key == "Space" else key
        kind = "keyDown" if text else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", type=kind, **code, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def violations(self) -> list[Any]:
        """What axe-core finds in the page with everything unfolded: rules, and where."""
        self.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        if not self.run("Boolean(window.axe)"):
            self.run(AXE.read_text(encoding="utf-8") + ";0")
        found: list[Any] = self.run(
            "axe.run(document, {resultTypes: ['violations'], preload: false})"
            ".then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html)]))"
        )
        return found

    def screenshot(self, path: Path, kind: str = "png") -> None:
        how: dict[str, Any] = {"format": kind} | ({} if kind == "png" else {"quality": 60})
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **how)["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser has ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._note(message)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        method, details = event["method"], event["params"]
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(details["exceptionDetails"]))
        if method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
            self.problems.append(json.dumps(details["args"]))
        if method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(details["entry"]["text"])
        if method == "Network.requestWillBeSent":
            url = details["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.problems.append(f"asked for {url}")
