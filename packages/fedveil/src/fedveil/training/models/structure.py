"""Whether a module computes what its type says: proofs and closed forms rest on it. And what it
draws by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules import module as torch_module

_DRAWING = threading.RLock()
_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def as_written(module: nn.Module) -> bool:
    """Whether nothing was attached to this very module that changes what its class computes.

    Its children are not looked at; a parametrisation shows in the type of its module.
    """
    replaced = (name for name in vars(module) if callable(getattr(type(module), name, None)))
    if any(replaced) or getattr(module, "_compiled_call_impl", None) is not None:
        return False
    own = any(getattr(module, f"_{name}", None) for name in _HOOKS)
    return not own and not any(getattr(torch_module, f"_global_{name}", None) for name in _HOOKS)


@contextmanager
def drawing_from(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """What modules draw by themselves (dropout, first weights) follows from a seed, on the CPU and
    on this device; afterwards all generators are where they were, and no other one was touched.

    A process has one generator for all its threads: they draw one after the other."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    with _DRAWING, torch.random.fork_rng(gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield
