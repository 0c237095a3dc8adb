"""A trained model for other programs: `torch.export` (.pt2) or ONNX (.onnx)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil.data.encoder import FARTHEST, TableEncoder
from fedveil.data.federation import Scaling, Task
from fedveil.data.schema import Kind
from fedveil.run.bundle import ModelBundle, answers_of

_OPSET = 20  # of ONNX: the first that compares texts is 19


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
        self.bundle, self.input_shape = bundle, bundle.input_shape
        self.module, featurizer = module, bundle.featurizer
        layer = getattr(None if featurizer is None else featurizer.features, "as_layer", None)
        if featurizer is not None and layer is not None:
            self.input_shape = featurizer.input_shape
            parts = [layer(featurizer.input_shape), _Half(), module]
            if featurizer.scaling is not None:
                parts.insert(0, _Scaled(featurizer.scaling))
            self.module = nn.Sequential(*parts)

    def forward(self, inputs: Tensor) -> Tensor:
        return answers_of(self.bundle, self.module(inputs))


def export(bundle: ModelBundle, module: nn.Module, path: Path) -> None:
    """Write a model for other programs.

    Args:
        bundle: The description of the model.
        module: The trained module.
        path: A new file that ends in .pt2 (torch.export) or .onnx.

    Raises:
        ConfigError: The file exists, or the format cannot hold the model.
    """
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
    if find_spec("onnxscript") is None or find_spec("onnx") is None:
        raise ConfigError('export: ONNX needs the extra: pip install "fedveil[onnx]"')
    import onnx

    output = "prediction" if answers.bundle.task is Task.REGRESSION else "probabilities"
    names: dict[str, Any] = {"input_names": ["inputs"], "output_names": [output]}
    names |= {"opset_version": _OPSET, "dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(answers, example, str(path), dynamic_shapes=shapes, **names)
    model = onnx.load(str(path))
    if answers.bundle.encoder is not None:
        model = _encoded(model, answers.bundle.encoder)
    classes = {"classes": json.dumps(answers.bundle.class_names)}
    onnx.helper.set_model_props(model, classes if answers.bundle.class_names else {})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _encoded(model: Any, encoder: TableEncoder) -> Any:
    """Put the encoding of a table's columns in front of an ONNX model.

    Each column is an input of its own, `[rows, 1]`: categories are texts in the spelling of
    training, empty where they are missing; numbers are single precision, NaN where they are
    missing; true is 1; dates are days since 1970-01-01.
    """
    import onnx
    from onnx import TensorProto, helper

    nodes: list[Any] = []

    def node(kind: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node, with numbers among its inputs as constants; return its output's name."""
        words: list[str] = []
        for one in inputs:
            if not isinstance(one, str):
                word = f"constant {len(nodes)} {len(words)}"
                value = onnx.numpy_helper.from_array(np.asarray(one))
                nodes.append(helper.make_node("Constant", [], [word], value=value))
                one = word
            words.append(one)
        output = f"{kind} {len(nodes)}"
        nodes.append(helper.make_node(kind, words, [output], **attributes))
        return output

    def flags(condition: str) -> str:
        return node("Cast", condition, to=TensorProto.FLOAT)

    columns, parts = [], []
    for name, column in encoder.columns.items():
        if column.kind is Kind.TEXT or column.buckets is not None:
            raise ConfigError(
                f"export: ONNX cannot encode column {name!r} ({column.kind}). Export .pt2, which "
                "takes the inputs that the encoder makes."
            )
        text = column.kind is Kind.CATEGORY
        kind = TensorProto.STRING if text else TensorProto.FLOAT
        columns.append(helper.make_tensor_value_info(name, kind, ["rows", 1]))
        if text:
            same = [node("Equal", name, np.array([[one]], object)) for one in column.categories]
            parts += [flags(one) for one in same]
            missing = node("Equal", name, np.array([[""]], object))
        elif column.cuts:
            cuts = np.asarray(column.cuts, np.float32)[None]
            reached = flags(node("GreaterOrEqual", name, cuts))
            bins = node("ReduceSum", reached, np.array([1]), keepdims=1)
            missing = node("IsNaN", name)
            bins = node("Where", missing, np.array([[-1]], np.float32), bins)
            parts.append(
                flags(node("Equal", bins, np.arange(len(cuts[0]) + 1, dtype=np.float32)[None]))
            )
        else:
            missing, number = node("IsNaN", name), name
            if column.kind is not Kind.BOOLEAN:
                if column.min is not None and column.max is not None:
                    number = node("Clip", number, np.float32(column.min), np.float32(column.max))
                number = node("Sub", number, np.float32(column.centre))
                number = node("Div", number, np.float32(column.width))
            number = node("Clip", number, np.float32(-FARTHEST), np.float32(FARTHEST))
            parts.append(node("Where", missing, np.array([[0]], np.float32), number))
        if column.missing or column.cuts:
            parts.append(flags(missing))
    nodes.append(helper.make_node("Concat", parts, ["inputs"], axis=1))
    graph = model.graph
    graph = helper.make_graph(
        [*nodes, *graph.node], graph.name, columns, graph.output, graph.initializer
    )
    opsets = [one for one in model.opset_import if one.domain]
    opsets.append(helper.make_opsetid("", _OPSET))
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
