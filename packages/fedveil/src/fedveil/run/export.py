"""A trained model for other programs: `torch.export` (.pt2) or ONNX (.onnx)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil.data.federation import Scaling, Task
from fedveil.run.bundle import ModelBundle
from fedveil.training.models.losses import class_scores


class _Half(nn.Module):
    """Round features to half precision, as stored ones are."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.half().float()


class _Scaled(nn.Module):
    """Shift and scale stored examples as in training."""

    shift: Tensor
    factor: Tensor

    def __init__(self, scaling: Scaling) -> None:
        super().__init__()
        self.register_buffer("shift", torch.from_numpy(scaling.shift))
        self.register_buffer("factor", torch.from_numpy(scaling.factor))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.shift) * self.factor


class Answers(nn.Module):
    """From a model's inputs to what people ask for: probabilities `[rows, classes]`, of several
    labels `[rows, labels]`, or numbers `[rows]` in the label's own unit."""

    def __init__(self, bundle: ModelBundle, module: nn.Module) -> None:
        super().__init__()
        if bundle.task is Task.SEQUENCE:
            raise ConfigError("export: not for sequences")
        self.several = bundle.task is Task.MULTI_LABEL
        self.classes, self.input_shape = bundle.task is Task.CLASSIFICATION, bundle.input_shape
        self.module, made = module, bundle.featurizer
        layer = getattr(None if made is None else made.features, "as_layer", None)
        if made is not None and layer is not None:
            self.input_shape = made.input_shape
            parts = [layer(made.input_shape), _Half(), module]
            if made.scaling is not None:
                parts.insert(0, _Scaled(made.scaling))
            self.module = nn.Sequential(*parts)
        target = None if bundle.encoder is None else bundle.encoder.target
        self.width, self.centre = (1.0, 0.0) if target is None else (target.width, target.centre)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs)
        if self.classes:
            return torch.softmax(class_scores(outputs, 1).double(), dim=-1)
        if self.several:
            return torch.sigmoid(outputs.double())
        return outputs.flatten().double() * self.width + self.centre


def export(bundle: ModelBundle, module: nn.Module, path: Path) -> None:
    """Write the model to a new file, of the kind that its name ends in."""
    if path.suffix not in (".pt2", ".onnx"):
        raise ConfigError(f"{path}: name a file that ends in .pt2 (torch.export) or .onnx")
    if path.exists():
        raise ConfigError(f"{path}: exists already; name a new file")
    answers = Answers(bundle, module).eval()
    example = (torch.zeros(2, *answers.input_shape),)
    shapes = ({0: torch.export.Dim("rows")},)
    partial = path.with_name(f".partial-{path.name}")
    try:
        if path.suffix == ".pt2":
            torch.export.save(
                torch.export.export(answers, example, dynamic_shapes=shapes), str(partial)
            )
        else:
            _onnx(answers, example, shapes, partial)
        write_atomically(path, partial.read_bytes())
    finally:
        partial.unlink(missing_ok=True)


def _onnx(answers: Answers, example: tuple[Tensor], shapes: tuple[object], path: Path) -> None:
    if find_spec("onnxscript") is None:
        raise ConfigError('export: ONNX needs the extra: pip install "fedveil[onnx]"')
    program = torch.onnx.export(answers, example, dynamic_shapes=shapes, dynamo=True)
    if program is None:
        raise ConfigError("export: torch made no ONNX program of this model")
    program.save(str(path), external_data=False)
