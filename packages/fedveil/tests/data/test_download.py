"""Downloads against a server on this machine that cuts, alters and refuses."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedveil.core.errors import ConfigError
from fedveil.data.sources.download import DownloadError, fetch

CONTENT = np.random.default_rng(0).bytes(70_001)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    """Serves what its path asks for: `/STATUS/BYTES/altered`, announcing the whole length."""

    def do_GET(self):
        status, length, altered = self.path[1:].split("/")
        if status != "200":
            self.send_error(int(status))
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        body = CONTENT[:-1] + b"x" if altered == "altered" else CONTENT
        self.wfile.write(body[: int(length)])

    def log_message(self, *args):
        pass


@pytest.fixture
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_whole_file_arrives_once_and_is_then_left_alone(address, tmp_path):
    path = tmp_path / "a" / "file.bin"
    for place in (f"{address}/200/{len(CONTENT)}/", "http://nowhere.invalid/"):
        assert fetch(place, path, len(CONTENT), (DIGEST,)).read_bytes() == CONTENT
    assert [one.name for one in path.parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize(
    ("place", "size", "error"),
    [
        ("200/70001/altered", len(CONTENT), ConfigError),
        ("200/70001/", len(CONTENT) - 5, ConfigError),
        ("200/70001/", len(CONTENT) + 5, DownloadError),
        ("200/500/", None, DownloadError),
        ("404/0/", None, DownloadError),
    ],
)
def test_what_is_not_the_published_file_is_not_kept(address, tmp_path, place, size, error):
    with pytest.raises(error):
        fetch(f"{address}/{place}", tmp_path / "file.bin", size, (DIGEST,))
    assert list(tmp_path.iterdir()) == []
