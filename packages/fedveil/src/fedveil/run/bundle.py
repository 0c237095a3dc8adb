"""A trained model and all that it takes to use it, in one file: `model.safetensors`.

The tensors are the parameters by name, as `safetensors.torch.load_model` reads them. The file's
metadata hold the architecture, how rows become inputs, the classes or the label's scale, and the
guarantee.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedveil.core.errors import ConfigError
from fedveil.data.encoder import TableEncoder
from fedveil.data.federation import Examples, Federation, Scaling, Task
from fedveil.planning.plan import Plan
from fedveil.run.directory import MODEL, content_digest, read_tensors
from fedveil.training.models.features import FEATURES, Featurizer
from fedveil.training.models.losses import class_scores
from fedveil.training.models.zoo import build

FORMAT = "fedveil-model-1"
_KEY = "fedveil"  # of the file's metadata


@dataclass(frozen=True)
class ModelBundle:
    """The description that a model file holds beside the weights."""

    data: str  # name of the data
    method: str
    task: Task
    classes: int  # 0 for regression; of several labels, how many
    class_names: tuple[str, ...]  # empty where classes are numbers
    input_shape: tuple[int, ...]
    architecture: Mapping[str, Any] | None  # name, hidden, input_norm; None: a module of one's own
    encoder: TableEncoder | None  # for tables
    scaling: Scaling | None  # of inputs that are arrays
    featurizer: Featurizer | None  # made the model's inputs from arrays, or from encoded rows
    guarantee: Mapping[str, Any] | None  # None: no noise was added
    public: bool = False  # whether the data were declared to be public

    def to_dict(self) -> dict[str, Any]:
        return {
            **vars(self),
            "task": str(self.task),
            "encoder": None if self.encoder is None else self.encoder.to_dict(),
            "scaling": _listed(self.scaling),
            "featurizer": _featurizer_to_dict(self.featurizer),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ModelBundle:
        encoder = document["encoder"]
        read: dict[str, Any] = {
            "task": Task(document["task"]),
            "encoder": None if encoder is None else TableEncoder.from_dict(encoder),
            "scaling": _scaling(document["scaling"]),
            "featurizer": _featurizer(document["featurizer"]),
            "public": document.get("public") is True,  # of an older file nobody knows
        }
        read |= {name: tuple(document[name]) for name in ("class_names", "input_shape")}
        return cls(**{**document, **read})

    def module(self) -> nn.Module:
        """Build a module of this architecture, whose weights are yet to be loaded."""
        if self.architecture is None:
            raise ConfigError(
                "the model is a module of your own: load it in Python with "
                "fedveil.load_run(directory, module=...)"
            )
        sequence, several = self.task is Task.SEQUENCE, self.task is Task.MULTI_LABEL
        none = np.zeros((1, *self.input_shape), np.int64 if sequence else np.float32)
        shape = (1, self.classes) if several else none.shape[: 1 + sequence]
        targets = np.zeros(shape, np.float32 if self.task is Task.REGRESSION else np.int64)
        one = Examples(none, targets)
        like = Federation(one, np.array([0, 1]), one, self.task, self.classes, name=self.data)
        chosen = dict(self.architecture)
        return build(chosen.pop("name"), like, **chosen)


def answers_of(bundle: ModelBundle, outputs: Tensor) -> Tensor:
    """Turn a model's outputs into answers, in double precision.

    Args:
        bundle: The description of the model.
        outputs: What the model returned.

    Returns:
        Probabilities `[rows, classes]`, of several labels `[rows, labels]`, or numbers `[rows]` in
        the label's unit.
    """
    if bundle.task is Task.MULTI_LABEL:
        return torch.sigmoid(outputs.double())
    if bundle.task is not Task.REGRESSION:
        scores = class_scores(outputs, 2 if bundle.task is Task.SEQUENCE else 1)
        return torch.softmax(scores.double(), dim=-1)
    target = None if bundle.encoder is None else bundle.encoder.target
    width, centre = (1.0, 0.0) if target is None else (target.width, target.centre)
    return outputs.flatten().double() * width + centre


def _listed(scaling: Scaling | None) -> list[Any] | None:
    return None if scaling is None else [scaling.shift.tolist(), scaling.factor.tolist()]


def _scaling(listed: list[Any] | None) -> Scaling | None:
    if listed is None:
        return None
    shift, factor = (np.asarray(part, np.float32) for part in listed)
    return Scaling(shift, factor)


def _featurizer_to_dict(featurizer: Featurizer | None) -> dict[str, Any] | None:
    features = None if featurizer is None else featurizer.features
    named = (name for name, kind in FEATURES.items() if type(features) is kind)
    if featurizer is None or (name := next(named, None)) is None:
        return None
    return {
        name: vars(features),
        "scaling": _listed(featurizer.scaling),
        "input_shape": list(featurizer.input_shape),
    }


def _featurizer(document: Mapping[str, Any] | None) -> Featurizer | None:
    if document is None:
        return None
    (features,) = (kind(**document[name]) for name, kind in FEATURES.items() if name in document)
    return Featurizer(features, _scaling(document["scaling"]), tuple(document["input_shape"]))


def bundle_of(plan: Plan, architecture: Mapping[str, Any] | None, guarantee: Any) -> ModelBundle:
    """Return the description that is stored with the model of a plan.

    Args:
        plan: The plan of the run.
        architecture: The arguments of `build`; None: a module of the user's.
        guarantee: The run's guarantee; None without noise.
    """
    data, featurizer = plan.federation, plan.federation.featurizer
    same = ("task", "classes", "class_names", "input_shape", "encoder", "scaling", "public")
    return ModelBundle(
        data=data.name,
        method=plan.method.name,
        architecture=architecture,
        featurizer=featurizer if isinstance(featurizer, Featurizer) else None,
        guarantee=None if guarantee is None else guarantee.to_dict(),
        **{name: getattr(data, name) for name in same},
    )


def bundle_file(tensors: Mapping[str, Tensor], bundle: ModelBundle) -> bytes:
    """Return the file of a model. The same weights and description give the same bytes."""
    return _file(tensors, bundle.to_dict())


def _file(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> bytes:
    header = {"format": FORMAT, "description": json.dumps(description)}
    header["digest"] = content_digest(tensors, header)
    return save(dict(tensors), {_KEY: json.dumps(header)})  # one key: several come in any order


def renamed_network(path: Path, name: str) -> bytes:
    """Return the file of a model with another name for the network that makes its inputs.

    Reading a model calls what it names. So this reads the description as data alone.

    Args:
        path: The model's file, whose inputs a network makes (`BackboneFeatures`).
        name: The network's name on this machine, where it has its weights.
    """
    metadata, tensors = read_tensors(path, str(path))
    description = json.loads(json.loads(metadata[_KEY])["description"])
    description["featurizer"]["backbone"] |= {"backbone": name, "backbone_weights": None}
    return _file(tensors, description)


def read_bundle(path: Path) -> tuple[ModelBundle, dict[str, Tensor]]:
    """Return the description and the parameters in a model file, or in the one of a run directory.

    Raises:
        ConfigError: There is none, it is damaged, or another version wrote it.
    """
    directory = path.is_dir()
    file = path / MODEL if directory else path
    if directory and not file.exists():
        if not (path / "recipe.toml").exists():
            raise ConfigError(f"{path}: not a run directory (no recipe.toml)")
        raise ConfigError(
            f"{path}: has no model yet; finish the run with: fedveil run --resume {path}"
        )
    metadata, tensors = read_tensors(file, str(file))
    try:
        header = json.loads(metadata.get(_KEY, "{}"))
    except ValueError as error:
        raise ConfigError(f"{file}: damaged metadata ({error})") from None
    if header.get("format") != FORMAT:
        raise ConfigError(
            f"{file}: holds weights only, or was written by another version of fedveil "
            f"(format {header.get('format')!r}, needed {FORMAT!r}); train again with this one"
        )
    if header.pop("digest", None) != content_digest(tensors, header):
        raise ConfigError(f"{file}: damaged, its contents do not match their digest")
    try:
        return ModelBundle.from_dict(json.loads(header["description"])), tensors
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: damaged description ({error})") from None
