"""Where a source's files are looked for, how they are verified, and when they are decoded."""

from __future__ import annotations

import hashlib
import importlib.util
import sys

import numpy as np
import pytest

from fedveil.core.errors import ConfigError
from fedveil.data.sources import files
from fedveil.data.sources.files import Copy, File, available, open_source

CONTENT = b"0123456789" * 100
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDVEIL_DATA", raising=False)


class Counting:
    """A decoder that counts how often it is called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, paths):
        self.calls += 1
        return {"x": np.frombuffer(b"".join(p.read_bytes() for p in paths.values()), np.uint8)}


def copies(decode, *names, url=None):
    return (Copy("plain", tuple(File(n, url, len(CONTENT), (DIGEST,)) for n in names), decode),)


def test_files_are_decoded_once_and_mapped_afterwards(tmp_path):
    (tmp_path / "a.bin").write_bytes(CONTENT)
    decode = Counting()
    for _ in range(3):
        _, arrays = open_source("s", copies(decode, "a.bin"), tmp_path)
        assert isinstance(arrays["x"], np.memmap)
        assert bytes(arrays["x"]) == CONTENT
    assert decode.calls == 1


def test_a_changed_file_is_verified_again(tmp_path):
    (tmp_path / "a.bin").write_bytes(CONTENT)
    open_source("s", copies(Counting(), "a.bin"), tmp_path)
    (tmp_path / "a.bin").write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(ConfigError, match=r"a\.bin: truncated or altered"):
        open_source("s", copies(Counting(), "a.bin"), tmp_path)


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b"x" + CONTENT[1:], b""])
def test_a_truncated_or_altered_file_is_refused_before_it_is_decoded(tmp_path, content):
    (tmp_path / "a.bin").write_bytes(content)
    decode = Counting()
    with pytest.raises(ConfigError, match=r"a\.bin: truncated or altered"):
        open_source("s", copies(decode, "a.bin"), tmp_path)
    assert decode.calls == 0


def test_damaged_decoded_arrays_are_made_again(tmp_path):
    (tmp_path / "a.bin").write_bytes(CONTENT)
    decode = Counting()
    open_source("s", copies(decode, "a.bin"), tmp_path)
    (kept,) = files.cache_directory().glob("decoded/*/x.npy")
    kept.write_bytes(kept.read_bytes()[:50])
    _, arrays = open_source("s", copies(decode, "a.bin"), tmp_path)
    assert bytes(arrays["x"]) == CONTENT
    assert decode.calls == 2


def test_missing_files_are_named_with_what_to_do(tmp_path):
    three = (*copies(Counting(), "a.bin", "b.bin", url="http://x/y"),)
    with pytest.raises(ConfigError, match=r"lacks a\.bin, b\.bin; put them there"):
        open_source("s", three, tmp_path)
    (tmp_path / "a.bin").write_bytes(CONTENT)
    with pytest.raises(ConfigError, match=r"lacks b\.bin; put them there, or unset FEDVEIL_DATA"):
        open_source("s", three, tmp_path)
    local = copies(Counting(), "c.bin")
    with pytest.raises(ConfigError, match="write to the authors"):
        open_source("s", local, tmp_path, advice="write to the authors")
    with pytest.raises(ConfigError, match="write to the authors"):
        open_source("s", local, None, advice="write to the authors")


def test_the_environment_names_the_directory_and_an_argument_wins(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    (here / "a.bin").write_bytes(CONTENT)
    monkeypatch.setenv("FEDVEIL_DATA", str(here))
    assert available("s", copies(Counting(), "a.bin")) is not None
    assert available("s", copies(Counting(), "a.bin"), there) is None
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere: not a directory"):
        open_source("s", copies(Counting(), "a.bin"), None)


def test_without_a_directory_files_are_downloaded_into_the_cache(tmp_path, monkeypatch):
    def fetch(url, path, size, digests):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)

    monkeypatch.setattr(files, "fetch", fetch)
    local, remote = copies(Counting(), "z.bin"), copies(Counting(), "a.bin", url="http://x/a")
    copy, arrays = open_source("s", local + remote, None)
    assert copy.files[0].name == "a.bin"
    assert bytes(arrays["x"]) == CONTENT
    assert (tmp_path / "cache" / "fedveil" / "files" / "s" / "a.bin").is_file()
    assert available("s", remote) is not None


def test_what_other_code_has_decoded_is_decoded_again(tmp_path, monkeypatch):
    (tmp_path / "a.bin").write_bytes(CONTENT)
    decode = Counting()
    for changed in (b"", b"\n# keeps other arrays"):
        source = tmp_path / "decoder.py"
        source.write_bytes(b"def decode(paths): return counting(paths)" + changed)
        spec = importlib.util.spec_from_file_location("decoder", source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, "decoder", module)
        module.counting = decode
        open_source("s", copies(module.decode, "a.bin"), tmp_path)
    assert decode.calls == 2
