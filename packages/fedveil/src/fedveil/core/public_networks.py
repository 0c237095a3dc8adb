"""Frozen public networks: found on this machine only, known by a digest, run in one thread."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from runpy import run_path
from typing import Any, cast

import torch
from torch import nn

from fedveil.core.errors import ConfigError

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@contextmanager
def offline(key: str, name: str) -> Iterator[None]:
    """Let libraries look for weights on this machine only.

    Args:
        key: The recipe's key that names the network, for messages.
        name: The network.

    Raises:
        ConfigError: A package is not installed, or the network cannot be loaded.
    """
    before = {variable: os.environ.get(variable) for variable in _OFFLINE}
    os.environ.update(dict.fromkeys(before, "1"))
    # Imported before, the hub's library has read the environment, and would go on downloading.
    hub: Any = sys.modules.get("huggingface_hub.constants")
    online = getattr(hub, "HF_HUB_OFFLINE", None)
    if hub is not None:
        hub.HF_HUB_OFFLINE = True
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{key}: {name} needs a package that is not installed ({error.name}). "
            f"Install it with: pip install {error.name}"
        ) from None
    except ConfigError:
        raise
    except Exception as error:  # whatever another library raises without its files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{key}: {name} cannot be loaded from this machine ({reason}). Put its weights into "
            "the library's cache first, or name a function that loads them from a file."
        ) from None
    finally:
        if hub is not None:
            hub.HF_HUB_OFFLINE = online
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def called(name: str) -> Any:
    """Return what a function without arguments returns.

    Args:
        name: `package.module:function` or `FILE.py:function`.
    """
    place, _, function = name.rpartition(":")
    if place.endswith(".py"):
        return run_path(place)[function]()
    return getattr(import_module(place), function)()


def pretrained(key: str, place: str) -> nn.Module:
    """Load a Hugging Face model from this machine, and nothing that its file does not hold.

    The library makes up weights that a file lacks, anew in every process. A pooler without weights,
    which files of classifiers and language models have not got, is left out.

    Args:
        key: The recipe's key that names the model, for messages.
        place: Its folder, or its name in the library's cache.

    Raises:
        ConfigError: Other weights than a pooler's are missing.
    """
    library = import_module("transformers")
    library.utils.logging.disable_progress_bar()
    network, about = library.AutoModel.from_pretrained(
        place, local_files_only=True, output_loading_info=True
    )
    missing = sorted(about["missing_keys"])
    others = [name for name in missing if not name.startswith("pooler.")]
    if others:
        raise ConfigError(
            f"{key}: {place} has no {others[0]} ({len(others)} weights are missing). Name a folder "
            "with all weights of the model in its config.json."
        )
    if missing:
        network.pooler = None
    return cast(nn.Module, network)


def weights_digest(network: nn.Module) -> str:
    """Return the SHA-256 of a network's layers, weights and stored statistics."""
    digest = hashlib.sha256(repr(network).encode())
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: the last bits of a sum depend on how many threads share it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
