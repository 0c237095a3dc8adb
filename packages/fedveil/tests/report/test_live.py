"""The growing page: whoever knows its address sees it grow, and nobody else sees anything."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedveil.cli import main
from fedveil.cli.report import watched_apart
from fedveil.core.errors import ConfigError
from fedveil.report.live import served

SMALL = ["--set", "training.rounds=3", "--set", "data.clients=30", "--quiet", "--seed", "1"]


def get(address: str, path: str | None = None, **headers: str) -> tuple[int, str]:
    found = urlsplit(address)
    connection = http.client.HTTPConnection(str(found.hostname), found.port, timeout=600)
    connection.request("GET", found.path if path is None else path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.headers["Cache-Control"] == "no-store"
    connection.close()
    return answer.status, text


def test_only_the_whole_address_on_this_machine_is_answered() -> None:
    with served(lambda: "<p>page</p>") as address:
        place = urlsplit(address).path
        almost = place[:-2] + ("y" if place[-2] == "x" else "x") + "/"  # places are random
        assert get(address) == (200, "<p>page</p>")
        assert get(address, Host=f"localhost:{urlsplit(address).port}")[0] == 200
        for path in ("/", almost, place + "more", "//", place.upper()):
            assert get(address, path) == (404, "")
        # Another name for this machine is how a foreign web page would reach it.
        assert get(address, Host="attacker.example") == (404, "")
        assert urlsplit(address).hostname == "127.0.0.1"
        assert len(place) > 30
    with pytest.raises(ConnectionRefusedError):
        get(address)


def test_a_page_that_cannot_be_made_yet_is_asked_for_again() -> None:
    pages = iter(["fail", "first", "fail", "second"])

    def make() -> str:
        if (page := next(pages)) == "fail":
            raise ConfigError("half of a round")
        return page

    with served(make) as address:
        status, text = get(address)
        assert status == 503
        assert "http-equiv='refresh'" in text
        assert [get(address)[1] for _ in range(3)] == ["first", "first", "second"]


def test_a_run_is_watched_by_a_process_of_its_own_that_ends_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Accountants set the number of digits for a whole process: two of them must not share one."""
    with watched_apart(tmp_path):
        (process,) = multiprocessing.active_children()
        assert process.pid != os.getpid()
        said = ""
        while "http" not in said:
            assert process.is_alive()
            said += capfd.readouterr().err
        address = said.split()[-1]
        assert get(address)[0] == 503  # there is no run yet
    assert not process.is_alive()
    with pytest.raises(ConnectionRefusedError):
        get(address)
    assert main(["run", *SMALL, "--watch", "--output", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").exists()
    assert multiprocessing.active_children() == []


def test_the_page_grows_with_the_run_of_another_process(tmp_path: Path) -> None:
    """`report --watch` shows what is there when it is asked, and ends at Ctrl-C."""
    run = tmp_path / "run"
    assert main(["run", *SMALL, "--no-report", "--output", str(run)]) == 0
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    (run / "metrics.jsonl").write_text("".join(lines[:1]))
    # What a shell starts in the background ignores Ctrl-C, and so does what that starts.
    program = (
        "import signal, sys; from fedveil.cli import main; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "report", str(run), "--watch"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stderr is not None
        address = next(line for line in process.stderr if "http" in line).split()[-1]
        assert rounds_in(get(address)[1]) == 1
        (run / "metrics.jsonl").write_text("".join(lines))
        (run / "result.json").write_bytes(kept)
        assert rounds_in(get(address)[1]) == 3
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()


def rounds_in(page: str) -> int:
    start = page.index('id="document">') + len('id="document">')
    document = json.loads(page[start : page.index("</script>", start)])
    rounds: int = document["runs"][0]["rounds"]
    return rounds
