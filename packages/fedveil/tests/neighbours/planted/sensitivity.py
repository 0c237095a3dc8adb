"""Bugs by which one unit moves a sum further than was accounted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fedveil.core.units import Adjacency
from fedveil.methods.parts.gradient_noise import OneStepNoise
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.training.client import update_pipeline as shaping_module
from fedveil.training.engines import contract
from fedveil.training.engines.affine_gradients import AffineGradients
from fedveil.training.engines.batched import RowEngine

from ..cases import Case
from .registry import by_record, plant


@plant(400, by_record)
def one_record_poisons_its_batch() -> Any:
    """An example that is not finite gets the factor zero: zero times infinity is no zero."""

    def clipped(self: AffineGradients, layers: Any, *given: Any) -> Any:
        return _ghostly(self, [tuple(part.double() for part in layer) for layer in layers], *given)

    return patch.object(AffineGradients, "_clipped", clipped)


def _tiny(case: Case) -> bool:
    return bool(case.table["privacy"]["clip_norm"] < 1e-3)


@plant(9000, lambda case: by_record(case) and not case.kind.classes and _tiny(case), near=1586)
def norms_underflow() -> Any:
    """Squares of single precision, which may be zero where the gradient is not."""

    def clipped(self: AffineGradients, layers: Any, *given: Any) -> Any:
        parts = [part for layer in layers for part in layer]
        lost = ~torch.stack([part.isfinite().all(dim=1) for part in parts]).all(dim=0)
        for part in parts:
            part.masked_fill_(lost[:, None], 0.0)
        return _ghostly(self, layers, *given)

    return patch.object(AffineGradients, "_clipped", clipped)


def _ghostly(
    self: AffineGradients, layers: Any, clip: Any, denominator: float, _: Any, counts: Any
) -> Any:
    """Clipped gradients from the norms of their parts, without any care."""
    powers = (
        [part.abs() if clip.order == 1 else part.square() for part in layer] for layer in layers
    )
    norms = sum(error.sum(dim=1) * (state.sum(dim=1) + 1) for error, state in powers)
    norms = (norms if clip.order == 1 else norms.sqrt()).cpu()
    factors = clip_factors(norms.flatten(), Clip(clip.norm, clip.order), relative_error=1e-4)
    factors = factors.view(norms.shape) * counts / denominator
    return [(error * factors[:, None].to(error.dtype), state) for error, state in layers]


@plant(3150, lambda case: case.kind.by_record, near=194)
def grids_of_their_own() -> Any:
    """Accounted with the first round's grid, which later ones need not be in proportion to."""
    real = OneStepNoise.mechanism

    def mechanism(self: OneStepNoise) -> Any:
        found = real(self)
        if isinstance(found, DiscreteGaussianSum):
            return replace(found, granularity=self._upload_grid(0))
        return found

    return patch.object(OneStepNoise, "mechanism", mechanism)


@plant(450, lambda case: case.engine in ("auto", "algebra"), near=11)
@contextmanager
def one_engine_forgets_to_clip() -> Iterator[None]:
    """Updates of the engine of rows go to the grid as they are."""
    train, snap, clip = RowEngine.updates, shaping_module.snap_rows, shaping_module.clip_rows
    inside = False

    @wraps(train)
    def updates(self: RowEngine, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        inside = True
        try:
            return iter(list(train(self, *args, **kwargs)))
        finally:
            inside = False

    def wide(bound: Any) -> Any:
        return replace(bound, norm=bound.norm * 4) if inside else bound

    def clip_rows(rows: Any, bound: Any, **kwargs: Any) -> Any:
        return clip(rows, wide(bound), **kwargs)

    def snap_rows(rows: Any, grid: float, bound: Any) -> Any:
        return snap(rows, grid, wide(bound))

    with ExitStack() as stack:
        stack.enter_context(patch.object(RowEngine, "updates", updates))
        stack.enter_context(patch.object(shaping_module, "clip_rows", clip_rows))
        stack.enter_context(patch.object(shaping_module, "snap_rows", snap_rows))
        yield


@plant(450, lambda case: "weight_cap" in case.table["training"])
def weights_without_a_cap() -> Any:
    """Clipped integers times a client's number of examples."""
    real = contract.shape_rows

    def shape_rows(updates: Any, pipeline: Any, layout: Any, senders: Any, *args: Any) -> Any:
        shaped = real(updates, pipeline, layout, senders, *args)
        if pipeline.weight_cap is None:
            return shaped
        heavy = torch.from_numpy(np.maximum(1, senders.sizes // pipeline.weight_cap))
        return replace(shaped, updates=shaped.rows * heavy[:, None])

    return patch.object(contract, "shape_rows", shape_rows)


@plant(900, near=11)
def replaced_accounted_as_zeroed() -> Any:
    """A replaced client moves a sum by two clips, not by one."""
    return patch.object(Adjacency, "sensitivity_factor", property(lambda self: 1))


@plant(300, lambda case: case.table["training"].get("sparsity", 0.7) > 0.5, near=2)
def kept_entries_are_scaled_up() -> Any:
    """LUS makes up for the entries it drops, after the clip."""
    real = contract.shape_rows

    def shape_rows(updates: Any, pipeline: Any, *args: Any) -> Any:
        shaped = real(updates, pipeline, *args)
        return replace(shaped, updates=shaped.rows * (2 if pipeline.sparsity > 0.5 else 1))

    return patch.object(contract, "shape_rows", shape_rows)
