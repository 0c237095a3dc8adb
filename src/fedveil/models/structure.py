"""Whether a module computes what its type says: proofs and closed forms rest on it."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def as_written(module: nn.Module) -> bool:
    """Whether nothing was attached to this very module that changes what its class computes.

    Its children are not looked at; a parametrisation shows in the type of its module.
    """
    if "forward" in vars(module) or getattr(module, "_compiled_call_impl", None) is not None:
        return False
    own = any(getattr(module, f"_{name}", None) for name in _HOOKS)
    return not own and not any(getattr(torch_module, f"_global_{name}", None) for name in _HOOKS)
