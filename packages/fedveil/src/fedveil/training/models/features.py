"""Fixed features: a public map of one example, applied before the model. They cost no privacy.

A feature map sees one example at a time and nothing else: no other example, no label, no statistic
of any data. A client's features are then a function of its own records, and what is proved of a
training on records holds for a training on their features as it stands: the guarantee is the same.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import signature
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.containment import contained, silence
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.progress import in_blocks
from fedveil.core.public_networks import one_thread
from fedveil.core.registry import Registry
from fedveil.data.columns import Array
from fedveil.data.declared import used_again
from fedveil.data.federation import Federation, Scaling
from fedveil.data.sources.files import cache_directory
from fedveil.training.models.backbone import BackboneFeatures
from fedveil.training.models.feature_cache import SHELF, recalled, unnamed
from fedveil.training.models.patches import PatchFeatures
from fedveil.training.models.random_features import RandomFeatures
from fedveil.training.models.scattering import Scattering
from fedveil.training.models.whitening import DIRECTIONS, check_drawings, whitened

_BLOCK = 256  # examples read at a time
VERSION = 4  # of the features; another one makes cached ones worthless
_OPPONENTS = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))  # of red, green and blue
_FLOOR = 1e-5  # deviation below which nothing is blown up


class FeatureMap(Protocol):
    """A map of one example `[...]`, as a model would see it, to float32 features of one shape.

    Whoever writes one declares by `data_independent = True` that no data have had a part in it.
    """

    @property
    def data_independent(self) -> bool: ...

    def __call__(self, example: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class ScatteringFeatures:
    """Scattering of an image `[h, w]` or `[h, w, colours]`, normalised: `[h', w', channels]`.

    Three colours are turned into brightness, red against blue, and green against both: brightness
    would drown the rest otherwise. Channels of one of them that differ in angles only are
    normalised together, over this image alone; an image's features then have length 1.
    """

    scales: int = 2
    angles: int = 8
    order: int = 2
    whiten: str | None = None  # drawings that tell what matters; features are then `[directions]`
    directions: int | None = None  # at most; None: as many as `whitening` has by default
    data_independent = True  # the filters are formulas, and so are the drawings

    def __post_init__(self) -> None:
        if self.whiten is not None:
            check_drawings(self.whiten, self.directions)
        elif self.directions is not None:
            raise ConfigError("model.directions: goes with model.whiten, which is not set")

    def __repr__(self) -> str:
        """As guarantees say it, and as features in the cache are known by."""
        shown = {key: value for key, value in vars(self).items() if value is not None}
        return f"ScatteringFeatures({', '.join(f'{key}={shown[key]!r}' for key in shown)})"

    def __call__(self, example: Tensor) -> Tensor:
        if self.whiten is not None:
            plain = replace(self, whiten=None, directions=None)
            return whitened(plain, self.whiten, self.directions or DIRECTIONS, example)
        if example.ndim not in (2, 3):
            raise ConfigError(
                f"model.features: scattering needs images, not inputs of shape {[*example.shape]}"
            )
        image = example[None] if example.ndim == 2 else example.permute(2, 0, 1)
        if len(image) == len(_OPPONENTS):
            image = _opponents(image)
        transform = _transform(*image.shape[1:], self.scales, self.angles, self.order)
        ends = list(accumulate(transform.groups, initial=0))
        parts = [
            _normalised(paths[begin:end])
            for paths in transform(image)
            for begin, end in pairwise(ends)
        ]
        features = torch.cat(parts).permute(1, 2, 0)
        return features / math.sqrt(features.numel())


# By the name in `model.features`. The parameters of a class or function are the keys of a recipe's
# section [model] that it understands.
FEATURES: Registry[Callable[..., FeatureMap]] = Registry(
    "feature map", "fedveil.features", None, Callable
)
FEATURES.add("scattering", ScatteringFeatures, __name__)
FEATURES.add("patches", PatchFeatures, __name__)
FEATURES.add("random", RandomFeatures, __name__)
FEATURES.add("backbone", BackboneFeatures, __name__)


def named_features(
    name: str | None, *, seed: int = 0, **settings: float | str | None
) -> FeatureMap | None:
    """The map that a recipe asks for; None if it trains on inputs as they are."""
    given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    if name is None and "backbone" in given:
        name = "backbone"
    if name is None:
        for key in given:
            raise ConfigError(f"model.{key}: goes with model.features, which is not set")
        return None
    build = FEATURES.find(name, "model.features")
    known = signature(build).parameters
    for key in given:
        if key not in known:
            raise ConfigError(f"model.{key}: not for model.features = {name!r}")
    if "seed" in known:
        given["seed"] = seed
    return build(**given)


@lru_cache(maxsize=8)
def _transform(height: int, width: int, scales: int, angles: int, order: int) -> Scattering:
    return Scattering(height, width, scales, angles, order)


def _opponents(image: Tensor) -> Tensor:
    """The opponents of an image `[3, h, w]`, sum by sum: matrix products may round otherwise."""
    red, green, blue = image
    return torch.stack([a * red + b * green + c * blue for a, b, c in _OPPONENTS])


def _normalised(part: Tensor) -> Tensor:
    centred = part - part.mean()
    return centred / centred.square().mean().sqrt().clamp(min=_FLOOR)


@dataclass(frozen=True, eq=False)
class Featurizer:
    """Stored inputs to features: what a federation was made by, and what a prediction needs."""

    features: FeatureMap
    scaling: Scaling | None
    input_shape: tuple[int, ...]  # of one stored example

    def __str__(self) -> str:
        """Return what a guarantee rests on, in one sentence."""
        usual = (
            f"Inputs are made of each example alone by {self.features}, a public map that no data "
            "have entered."
        )
        return str(getattr(self.features, "statement", usual))

    def __call__(self, inputs: Array) -> npt.NDArray[np.float16]:
        """Features `[examples, ...]` of stored inputs `[examples, ...]`."""
        found = np.empty((len(inputs), *self.shape), np.float16)
        self.write(inputs, found)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example's features."""
        with one_thread():
            return tuple(self.features(torch.zeros(self.input_shape)).shape)

    def mapped(self, inputs: Array) -> npt.NDArray[np.float16]:
        """Return the features in a file without a name, which vanishes with the process."""
        self._check()
        shape = (len(inputs), *self.shape)
        found = unnamed(shape) if len(inputs) else np.zeros(shape, np.float16)
        for rows in in_blocks(range(len(inputs)), SHELF, "features"):
            self.write(inputs[rows[0] : rows[-1] + 1], found[rows[0] :])
        return found

    def _check(self) -> None:
        """Refuse a map that remembers: what it makes of an example must not change with others."""
        draw = torch.Generator().manual_seed(7)
        tried = [torch.rand(self.input_shape, generator=draw) * s for s in (1.0, 3e38, -1.0)]
        with one_thread(), torch.inference_mode():
            before, *_, after = [self.features(one.clone()).clone() for one in (*tried, tried[0])]
        if not torch.equal(before, after):
            raise PrivacyRefusal(
                "model.features: the map gives another result for the same example after it has "
                "seen others, so one client's data would enter another's features",
                "use a map without state and without randomness of its own",
            )

    def write(self, inputs: Array, into: npt.NDArray[np.float16]) -> None:
        """The features, one example at a time: batches might round otherwise than single ones."""
        with one_thread(), torch.inference_mode(), silence():
            for begin in range(0, len(inputs), _BLOCK):
                seen = self._scaled(inputs[begin : begin + _BLOCK])
                for place, example in enumerate(seen, begin):
                    into[place] = self._one(example, into.shape[1:])

    def _scaled(self, inputs: Array) -> npt.NDArray[np.float32]:
        return inputs.astype(np.float32) if self.scaling is None else self.scaling(inputs)

    def _one(
        self, example: npt.NDArray[np.float32], shape: tuple[int, ...]
    ) -> npt.NDArray[np.float16]:
        """One that overflows, or at which the map raises, counts as zero: stopping would tell."""
        with contained():
            own = torch.from_numpy(example).clone(memory_format=torch.contiguous_format)
            found = self.features(own).half()
            if tuple(found.shape) == shape and bool(found.isfinite().all()):
                return found.numpy()
        return np.zeros(shape, np.float16)


def with_features(
    federation: Federation, features: FeatureMap, *, keep: bool = False
) -> Federation:
    """The federation with features for inputs, memory-mapped; once made, they are made no more.

    They are kept in this process, and, with `keep`, in the user's cache: for data whose decoded
    files are there as well, not for data that a user keeps elsewhere.
    """
    if features.data_independent is not True:
        raise PrivacyRefusal(
            f"model.features: {type(features).__name__} does not declare that it is independent of "
            "all data, so its own making might give some of them away",
            "set data_independent = True on a map that nobody's data have entered",
        )
    if isinstance(federation.featurizer, Featurizer):
        if federation.featurizer.features == features:
            return federation
        raise ConfigError("model.features: the federation's inputs are other features already")
    known = _MADE.setdefault(federation, {})
    if features not in known:
        featurizer = Featurizer(features, federation.scaling, federation.input_shape)
        known[features] = _made(federation, featurizer, keep)
    return known[features]


_Known = dict[FeatureMap, Federation]
_MADE: weakref.WeakKeyDictionary[Federation, _Known] = weakref.WeakKeyDictionary()


def _made(federation: Federation, featurizer: Featurizer, keep: bool) -> Federation:
    parts = {"train": federation.train, "test": federation.test}
    if federation.validation is not None:
        parts["validation"] = federation.validation
    keep = keep and not federation.elsewhere
    columns: dict[str, Array] = {}
    for part, own in parts.items():
        if federation.elsewhere and part == "train":  # a stand-in, which takes no room
            shape = (len(own), *featurizer.shape)
            columns[part] = np.broadcast_to(np.zeros((), np.float16), shape)
        elif keep:
            home = _home(featurizer, own.inputs)
            columns[part] = recalled(home, own.inputs, featurizer.mapped)
        else:
            columns[part] = featurizer.mapped(own.inputs)
    made = {part: replace(own, inputs=columns[part]) for part, own in parts.items()}
    # Features lie in memory of their own: that their images were shared would not show any more.
    train, *others = (own.inputs for own in parts.values())
    return replace(
        federation,
        unprotected=tuple(dict.fromkeys((*federation.unprotected, *used_again(train, *others)))),
        train=made["train"],
        test=made["test"],
        validation=made.get("validation"),
        scaling=None,
        features=(),
        featurizer=featurizer,
        verified=True,  # `Featurizer` leaves nothing that is not finite
    )


def _home(featurizer: Featurizer, inputs: Array) -> Path:
    """Where the features are kept that this map makes of such examples, by this code."""
    features = getattr(featurizer.features, "cache_key", featurizer.features)
    about = (VERSION, torch.__version__, features, inputs.dtype, inputs.shape[1:])
    digest = hashlib.sha256(repr(about).encode())
    if (scaling := featurizer.scaling) is not None:
        for column in (scaling.shift, scaling.factor):
            digest.update(repr((column.dtype, column.shape)).encode())
            digest.update(np.ascontiguousarray(column).data)
    return cache_directory() / "features" / digest.hexdigest()[:32]
