"""Frozen public networks as feature maps: the same numbers in training, prediction and export."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedveil as fv
from fedveil.cli import main
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.training.models import backbone
from fedveil.training.models.backbone import BackboneFeatures
from fedveil.training.models.features import Featurizer

TINY = "tests.models.test_backbone:tiny"
WIDTH = 12


def tiny(seed: int = 3) -> nn.Module:
    """A network with batch normalisation, stored statistics and a classifier of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        network.append(nn.Flatten()).append(nn.Linear(WIDTH, 5))
        network[1].running_mean.normal_()
        network[1].running_var.uniform_(0.5, 2)
    network.pixels = 16
    return network


def other() -> nn.Module:
    return tiny(4)


def by_hand(pictures: torch.Tensor) -> torch.Tensor:
    """What the features should be: `[n, 8, 8, 3]` to `[n, WIDTH]`."""
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    seen = ((pictures - mean) / std).permute(0, 3, 1, 2)
    large = nn.functional.interpolate(seen, (16, 16), mode="bilinear", align_corners=False)
    made = tiny().eval()[:5](large)
    made = made - made.mean(dim=1, keepdim=True)
    return made / made.norm(dim=1, keepdim=True)


def pictures(count: int = 7, *, colours: int | None = 3) -> np.ndarray:
    shape = (count, 8, 8) if colours is None else (count, 8, 8, colours)
    return np.random.default_rng(0).random(shape, np.float32)


def test_features_are_what_the_network_computes() -> None:
    features = BackboneFeatures(TINY, backbone_head="5")
    given = torch.from_numpy(pictures())
    with torch.inference_mode():
        made = torch.stack([features(one) for one in given])
        torch.testing.assert_close(made, by_hand(given), atol=1e-6, rtol=1e-5)


def test_features_of_an_example_do_not_depend_on_the_others() -> None:
    features = BackboneFeatures(TINY, backbone_head="5")
    inputs = pictures(40)
    made = Featurizer(features, None, (8, 8, 3)).mapped(inputs)
    inputs[1:] = np.nan  # of others, which then count as zero
    again = Featurizer(features, None, (8, 8, 3)).mapped(inputs)
    np.testing.assert_array_equal(made[0], again[0])
    assert not again[1:].any()


def test_a_grey_picture_has_three_equal_colours() -> None:
    features, grey = BackboneFeatures(TINY, backbone_head="5"), pictures(1, colours=None)[0]
    coloured = torch.from_numpy(np.repeat(grey[..., None], 3, axis=-1))
    torch.testing.assert_close(features(torch.from_numpy(grey)), features(coloured))


def test_a_run_trains_a_head_predicts_and_exports(tmp_path: Path) -> None:
    told = ["model.backbone=" + TINY, "model.backbone_head='5'", "training.rounds=3", "seed=1"]
    folder = tmp_path / "run"
    command = ["run", "--output", str(folder), "--quiet"]
    for assignment in told:
        command += ["--set", assignment]
    assert main(command) == 0
    guarantee = json.loads((folder / "guarantee.json").read_text())
    digest = BackboneFeatures(TINY, backbone_head="5").digest
    assert any(digest[:16] in one and TINY in one for one in guarantee["rests_on"])

    trained, inputs = fv.load_run(folder), fv.load("digits", clients=10).test.inputs[:9]
    chances = trained.predict_proba(inputs)
    trained.export(tmp_path / "model.pt2")
    exported = torch.export.load(str(tmp_path / "model.pt2")).module()
    again = exported(torch.from_numpy(np.asarray(inputs, np.float32)))
    np.testing.assert_allclose(again.detach().numpy(), chances, atol=2e-3)  # half precision


def test_a_file_of_weights_is_loaded_and_named_by_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file(other().state_dict(), file)
    plain, filled = BackboneFeatures(TINY), BackboneFeatures(TINY, str(file))
    assert filled.digest == BackboneFeatures("tests.models.test_backbone:other").digest
    assert filled.digest != plain.digest
    assert filled.digest[:16] in filled.statement


def test_a_model_of_data_that_nobody_called_public_is_no_backbone(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    for public in (False, True):
        said = {"description": json.dumps({"data": "mnist", "public": public})}
        save_file(other().state_dict(), file, {"fedveil": json.dumps(said)})
        if public:
            assert BackboneFeatures(TINY, str(file)).digest
            continue
        with pytest.raises(ConfigError, match="mnist"):
            BackboneFeatures(TINY, str(file))


def smooth() -> nn.Module:
    """The weights of `tiny`, and another activation."""
    network = tiny()
    network[2] = nn.Tanh()
    return network


def test_other_layers_with_the_same_weights_are_another_network() -> None:
    same, other = (BackboneFeatures(f"{TINY[:-4]}{name}") for name in ("tiny", "smooth"))
    assert same.digest != other.digest
    assert same.cache_key != other.cache_key


def test_features_are_made_again_when_the_file_of_the_network_changes(tmp_path: Path) -> None:
    file, keys = tmp_path / "net.py", []
    for line in ("", "# another forward"):
        file.write_text(f"from tests.models.test_backbone import tiny\n{line}\n")
        keys.append(BackboneFeatures(f"{file}:tiny").cache_key)
    assert keys[0] != keys[1]


def test_weights_other_than_those_of_training_are_refused() -> None:
    with pytest.raises(PrivacyRefusal):
        BackboneFeatures(TINY, digest="0" * 64)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"backbone": "resnet"}, "model.backbone"),
        ({"backbone": "timm:resnet18"}, "model.backbone"),  # not installed, or no weights here
        ({"backbone": "tests.models.test_backbone:pictures"}, "model.backbone"),
        ({"backbone": TINY, "backbone_head": "fc"}, "model.backbone_head"),
        ({"backbone": TINY, "backbone_weights": "no-such-file.pt"}, "model.backbone_weights"),
        ({"backbone": TINY, "pixels": 0}, "model.pixels"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_its_key(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        BackboneFeatures(**settings)


def test_timm_takes_weights_from_the_file_alone_and_nothing_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = ModuleType("huggingface_hub.constants")
    hub.HF_HUB_OFFLINE = False
    timm, asked = ModuleType("timm"), []

    def create_model(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        asked.append((name, pretrained, num_classes, hub.HF_HUB_OFFLINE))
        return tiny(5)[:5]

    timm.create_model = create_model
    config = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.2,) * 3}
    timm.data = SimpleNamespace(resolve_model_data_config=lambda network: config)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", hub)
    save_file(tiny()[:5].state_dict(), tmp_path / "own.safetensors")

    BackboneFeatures("timm:small", backbone_weights=str(tmp_path / "own.safetensors"))
    BackboneFeatures("timm:small")
    assert asked == [("small", False, 0, True), ("small", True, 0, True)]
    assert hub.HF_HUB_OFFLINE is False


def test_a_hugging_face_model_has_no_weights_that_its_folder_lacks(tmp_path: Path) -> None:
    """Folders of image classifiers hold no pooler, and the library makes one up at random."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "image_size": 8}
    config = transformers.ViTConfig(**sizes, num_hidden_layers=1, patch_size=4)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    means = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor | means))

    example, made = torch.from_numpy(pictures(1)[0]), []
    for seed in (0, 1):
        backbone._load.cache_clear()  # as in another process
        backbone._layer.cache_clear()
        torch.manual_seed(seed)
        features = BackboneFeatures(f"transformers:{tmp_path}")
        made.append((features.digest, features(example)))
    assert made[0][0] == made[1][0]
    assert torch.equal(made[0][1], made[1][1])

    (weights,) = tmp_path.glob("*.safetensors")
    kept = {name: one for name, one in load_file(weights).items() if ".layernorm_" not in name}
    save_file(kept, weights, {"format": "pt"})
    backbone._load.cache_clear()
    with pytest.raises(ConfigError, match=r"model\.backbone"):
        BackboneFeatures(f"transformers:{tmp_path}")
