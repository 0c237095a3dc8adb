"""Downloads against a server on this machine that cuts, alters, forgets and refuses."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedveil.core.errors import ConfigError
from fedveil.data.sources.download import DownloadError, fetch

CONTENT = np.random.default_rng(0).bytes(700_001)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `cut` ends a connection after so many bytes, as often as `cuts` says."""

    cut = 0
    cuts = 0
    ranges = True
    status = 200
    content = CONTENT

    def __init__(self):
        self.requests = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.requests.append(asked)
        if server.status != 200:
            self.send_error(server.status)
            return
        start = int(asked.split("=")[1].rstrip("-")) if asked and server.ranges else 0
        if start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if asked and server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cuts > 0:
            server.cuts -= 1
            body = body[: server.cut]
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_whole_file_arrives_once_and_is_then_left_alone(server, tmp_path):
    for _ in range(2):
        path = fetch(server.url, tmp_path / "a" / "file.bin", len(CONTENT), (DIGEST,))
        assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert names(tmp_path / "a") == ["file.bin"]


def test_a_broken_connection_is_resumed_where_it_broke(server, tmp_path):
    server.cut, server.cuts = 300_000, 2
    fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.requests == [None, "bytes=300000-", "bytes=600000-"]


def test_an_interrupted_download_goes_on_in_the_next_run(server, tmp_path):
    server.cut, server.cuts = 100_000, 4
    with pytest.raises(DownloadError, match="400000 of 700001 bytes; run again to go on"):
        fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    assert names(tmp_path) == ["file.bin.part"]
    fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    assert server.requests[-1] == "bytes=400000-"
    assert names(tmp_path) == ["file.bin"]


def test_a_server_without_ranges_starts_over_and_the_file_is_still_right(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_an_altered_file_is_refused_and_not_kept(server, tmp_path):
    server.content = CONTENT[:500_000] + b"x" + CONTENT[500_001:]
    with pytest.raises(ConfigError, match="digest is not the published one; refused"):
        fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    assert names(tmp_path) == []


def test_a_foreign_beginning_is_found_by_the_digest_and_the_next_try_is_clean(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"y" * 1000)
    with pytest.raises(ConfigError, match="refused"):
        fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("change", [-1000, 1000])
def test_a_file_of_another_length_is_refused(server, tmp_path, change):
    server.content = CONTENT[:change] if change < 0 else CONTENT + bytes(change)
    with pytest.raises((ConfigError, DownloadError)):
        fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    assert not (tmp_path / "file.bin").exists()


def test_a_file_of_unknown_length_must_still_arrive_whole(server, tmp_path):
    server.cut, server.cuts = 100_000, 1
    fetch(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_partial_file_longer_than_the_whole_is_thrown_away(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"z" * (len(CONTENT) + 5))
    fetch(server.url, tmp_path / "file.bin", len(CONTENT), (DIGEST,))
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_complete_partial_file_of_unknown_length_is_fetched_again(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    fetch(server.url, tmp_path / "file.bin", None, (DIGEST,))
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusing_server_is_named_at_once(server, tmp_path, status):
    server.status = status
    with pytest.raises(DownloadError, match=f"answered {status}"):
        fetch(server.url, tmp_path / "file.bin")
    assert len(server.requests) == 1


def test_no_server_at_all_says_what_to_do(tmp_path):
    with Server() as gone:
        url = gone.url
    with pytest.raises(DownloadError, match="set FEDVEIL_DATA"):
        fetch(url, tmp_path / "file.bin")


def test_two_at_once_download_once(server, tmp_path):
    path = tmp_path / "file.bin"
    both = [
        threading.Thread(target=fetch, args=(server.url, path, len(CONTENT), (DIGEST,)))
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert names(tmp_path) == ["file.bin"]
