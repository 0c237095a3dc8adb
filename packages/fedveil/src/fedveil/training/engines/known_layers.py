"""Which modules hand over the factors of each example's gradient, and attention, made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedveil.training.engines import fourier
from fedveil.training.engines.layer_gradients import (
    AffineLayer,
    ConvolutionLayer,
    Embedding,
    Layer,
    Parameters,
    Scale,
    Tape,
)
from fedveil.training.engines.recurrent_gradients import Recurrent
from fedveil.training.models.flat import Layout, Slot
from fedveil.training.models.structure import as_written


class Attention:
    """Stands in for the `forward` of `nn.MultiheadAttention`."""

    def __init__(self, module: nn.MultiheadAttention, parameters: Parameters, tape: Tape) -> None:
        self._module = module
        joint = module.in_proj_weight is not None
        self._into = [_Projection(module, parameters, tape, place, joint) for place in range(3)]
        inner = {n.removeprefix("out_proj."): s for n, s in parameters.items() if "out_proj" in n}
        self._out = AffineLayer(module.out_proj, inner, tape)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        module, heads = self._module, self._module.num_heads
        batched = query.dim() == 3

        def split(part: Tensor, layer: Layer) -> Tensor:
            """`[n, heads, length, width]`."""
            part = part if batched else part[None]
            part = part.transpose(0, 1) if batched and not module.batch_first else part
            found = layer(part)
            return found.view(*found.shape[:-1], heads, -1).transpose(1, 2)

        parts = zip((query, key, value), self._into, strict=True)
        q, k, v = (split(part, layer) for part, layer in parts)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        for mask in (attn_mask, key_padding_mask):
            if mask is None:
                continue
            if mask is key_padding_mask:
                mask = (mask if batched else mask[None])[:, None, None]
            elif mask.dim() == 3:
                mask = mask.view(-1, heads, *mask.shape[1:])
            minus = torch.full_like(scores, -math.inf)
            scores = torch.where(mask, minus, scores) if mask.dtype is torch.bool else scores + mask
        shares = functional.dropout(scores.softmax(-1), module.dropout, module.training)
        outputs = self._out((shares @ v).transpose(1, 2).flatten(2))
        outputs = outputs.transpose(0, 1) if batched and not module.batch_first else outputs
        weights = None
        if need_weights:
            weights = shares.mean(1) if average_attn_weights else shares
            weights = weights if batched else weights[0]
        return outputs if batched else outputs[0], weights


class _Projection(AffineLayer):
    """The matrix of queries, keys or values: one of three, or a third of one."""

    def __init__(
        self,
        module: nn.MultiheadAttention,
        parameters: Parameters,
        tape: Tape,
        place: int,
        joint: bool,
    ) -> None:
        self._third, self._joint = place, joint
        weight = "in_proj_weight" if joint else f"{'qkv'[place]}_proj_weight"
        self.names = (weight, "in_proj_bias")
        split = {"in_proj_bias"} | ({weight} if joint else set())
        own = {name: parameters[name] for name in self.names if name in parameters}
        own = {name: _third(slot, place) if name in split else slot for name, slot in own.items()}
        super().__init__(module, own, tape)
        self._split = split

    def value(self, name: str) -> Tensor | None:
        whole = super().value(name)
        if whole is None or name in self.parameters or name not in self._split:
            return whole
        return whole.chunk(3)[self._third]


def _third(slot: Slot, place: int) -> Slot:
    rows = slot.shape[0] // 3
    start = slot.start + place * rows * math.prod(slot.shape[1:])
    return Slot(slot.name, (rows, *slot.shape[1:]), start)


def _even(module: nn.Conv2d) -> bool:
    """Whether padding is the same on both sides."""
    sizes = zip(module.dilation, module.kernel_size, strict=True)
    return module.padding != "same" or all(d * (k - 1) % 2 == 0 for d, k in sizes)


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, fourier.Conv2d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def _stand_in(
    module: Any, own: Parameters, tape: Tape, channels_last: bool
) -> Callable[..., Any] | None:
    """Return a layer that hands over the gradients of this module's parameters, if one is known."""
    kind = type(module)
    if kind is nn.Linear:
        return AffineLayer(module, own, tape)
    if kind in _CONVOLUTIONS and _even(module):
        return ConvolutionLayer(module, own, tape, channels_last)
    if kind is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq:
        return Embedding(module, own, tape)
    if kind in (nn.RNN, nn.LSTM, nn.GRU) and not module.proj_size:
        return Recurrent(module, own, tape)
    if kind is nn.MultiheadAttention and module.bias_k is None and not module.add_zero_attn:
        return Attention(module, own, tape)
    if getattr(module, "weight", None) is None:
        return None

    def scale(normalised: Callable[[Tensor], Tensor], behind: Callable[[Tensor], int]) -> Scale:
        return Scale(module, own, tape, normalised, behind)

    if kind is nn.LayerNorm:
        shape, tiny = module.normalized_shape, module.eps
        return scale(lambda x: functional.layer_norm(x, shape, None, None, tiny), lambda x: 0)
    if kind is nn.RMSNorm:
        shape, tiny = module.normalized_shape, module.eps
        return scale(lambda x: functional.rms_norm(x, shape, None, tiny), lambda x: 0)
    if kind is nn.GroupNorm:
        groups, tiny = module.num_groups, module.eps
        return scale(
            lambda x: functional.group_norm(x, groups, None, None, tiny), lambda x: x.dim() - 2
        )
    if kind in _INSTANCE_NORMS and not module.track_running_stats:
        axes, tiny, channels = _INSTANCE_NORMS.index(kind) + 1, module.eps, module.num_features

        def instances(x: Tensor) -> Tensor:
            images = x if x.dim() == axes + 2 else x[None]
            found = functional.group_norm(images, channels, None, None, tiny)
            return found if x.dim() == axes + 2 else found[0]

        return scale(instances, lambda x: axes)
    return None


def hand_over(module: nn.Module, layout: Layout, tape: Tape, channels_last: bool) -> list[str]:
    """Put layers in the place of modules that are known, in a module of one's own.

    A module is known if it is of a type above, nothing is attached to it, and none of its
    parameters is another module's as well.

    Args:
        module: A private copy; the `forward` of known modules in it is replaced.
        layout: Where trained parameters stand.
        tape: Where layers find weights and leave gradients.
        channels_last: Whether images are best kept with the channels of a pixel together.

    Returns:
        The names of trained parameters that no layer hands over.
    """
    slots = {slot.name: slot for slot in layout}
    owners: dict[int, int] = {}
    for child in module.modules():
        for parameter in child._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    rest = dict(slots)
    for path, child in list(module.named_modules()):
        lead = f"{path}." if path else ""
        own = {
            name: slots[lead + name]
            for name, parameter in child.named_parameters()
            if lead + name in slots and parameter.requires_grad
        }
        shared = any(owners[id(parameter)] > 1 for parameter in child.parameters())
        if not own or shared or not all(as_written(one) for one in child.modules()):
            continue
        found = _stand_in(child, own, tape, channels_last)
        if found is None:
            continue
        child.forward = found
        for slot in own.values():
            rest.pop(slot.name, None)
    return list(rest)
