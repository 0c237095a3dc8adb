"""Frozen layers train nothing, send nothing and get no noise; adapters and starts from files."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedveil as fv
from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.run.run import Run
from fedveil.run.trained import load_run
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Job, RoundRequest, summed
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.frozen import LowRank, adapt, freeze, start_from

JOB = ["data.clients=10", "training.rounds=2", "training.local_steps=2", "training.rate=0.5"]
MLP = ["model.name=mlp", "model.hidden=[12, 9]"]


def planned(*more: str, seed: int | None = 3) -> fv.Plan:
    values = {} if seed is None else {"seed": seed}
    chosen = recipes.with_defaults(recipes.parse({}, [*JOB, *MLP, *more], values))
    return plan_of(chosen, federation_of(chosen.data))


def frozen_part(module: nn.Module) -> dict[str, torch.Tensor]:
    named = module.named_parameters()
    return {name: one.detach().clone() for name, one in named if not one.requires_grad}


@pytest.mark.parametrize("seed", [3, None], ids=["simulated", "protected"])
@pytest.mark.parametrize(
    ("more", "trained"),
    [
        (('model.frozen=["backbone"]',), 9 * 10 + 10),
        (('model.frozen=["1", "3.bias"]',), 12 * 9 + 9 * 10 + 10),
        (('model.frozen=["backbone"]', "model.adapter_rank=2"), 2 * (12 + 9) + 100),
        (('model.frozen=["*"]', "model.adapter_rank=1"), 12 + 9 + 10),
    ],
)
def test_only_the_rest_is_trained_sent_and_noised(
    more: tuple[str, ...], trained: int, seed: int | None
) -> None:
    plan = planned(*more, seed=seed)
    before = frozen_part(plan.module)
    assert plan.layout.size == trained
    run = Run(plan)
    widths = []
    real = run.engine.updates

    def watched(*args: object, **settings: object) -> object:
        for block in real(*args, **settings):  # type: ignore[arg-type]
            widths.append(block.total.shape)
            yield block

    run.engine.updates = watched  # type: ignore[method-assign,assignment]
    run.finish()
    assert set(widths) == {(trained,)}
    assert not torch.equal(run.state.weights, plan.start)
    after = frozen_part(run.model())
    assert before.keys() == after.keys() != set()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_frozen_weights_cost_no_noise() -> None:
    """The same multiplier, on fewer coordinates."""
    whole, head = planned(seed=None), planned('model.frozen=["backbone"]', seed=None)
    assert whole.noise_multiplier == head.noise_multiplier
    assert whole.guarantee is not None
    assert head.guarantee is not None
    assert whole.guarantee.epsilon == head.guarantee.epsilon
    assert head.pipeline.width(head.layout) == 100 < whole.pipeline.width(whole.layout)


@pytest.mark.parametrize("layer", [nn.Linear(5, 7), nn.Conv2d(3, 4, 3, stride=2, padding=1)])
def test_an_adapter_adds_nothing_at_first_and_then_what_it_says(layer: nn.Module) -> None:
    torch.manual_seed(1)
    inputs = torch.randn(2, 5) if isinstance(layer, nn.Linear) else torch.randn(2, 3, 9, 8)
    expected = layer(inputs)
    adapted = adapt(freeze(layer, ["*"]), 2)
    assert isinstance(adapted, LowRank)
    assert torch.equal(adapted(inputs), expected)
    assert [slot.name for slot in layout_of(adapted)] == ["up.weight"]
    nn.init.normal_(adapted.up.weight)
    if isinstance(layer, nn.Linear):
        merged = layer.weight + adapted.up.weight @ adapted.down.weight  # type: ignore[operator]
        wanted = nn.functional.linear(inputs, merged, layer.bias)
    else:
        change = torch.einsum(
            "orxy,rikl->oikl",
            adapted.up.weight,
            adapted.down.weight,  # type: ignore[arg-type]
        )
        wanted = nn.functional.conv2d(inputs, layer.weight + change, layer.bias, 2, 1)
    assert torch.allclose(adapted(inputs), wanted, atol=1e-5)


class Block(nn.Module):
    """A transformer's layer and a head, as others write them."""

    def __init__(self, **settings: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **settings)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(states.mean(1))


class PeftLike(nn.Module):
    """A linear layer with the user's own adapter, in the way of `peft`."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, layer.out_features, bias=False)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + 2.0 * self.lora_B["default"](self.lora_A["default"](x))


@pytest.mark.parametrize("settings", [{}, {"kdim": 8, "vdim": 8}])
def test_attention_gets_adapters_for_all_of_its_matrices(settings: dict[str, int]) -> None:
    torch.manual_seed(1)
    block, inputs = Block(**settings), torch.randn(2, 5, 8)
    expected = block(inputs)
    adapted = adapt(freeze(block, ["*", "!head"]), 2)
    torch.testing.assert_close(adapted(inputs), expected)
    trained = {slot.name.split(".")[0] for slot in layout_of(adapted)}
    assert trained == {"attention", "head"}
    own = adapted.attention
    for up in own.up:
        nn.init.normal_(up)
    moved = adapted(inputs)
    assert not torch.allclose(moved, expected)
    with torch.no_grad():
        for name, up, down in zip(own.names, own.up, own.down, strict=True):
            own.layer.get_parameter(name).add_(up @ down)
            up.zero_()
    torch.testing.assert_close(adapted(inputs), moved)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    adapt(freeze(encoder, ["*"]), 1)
    for up in encoder.self_attn.up:
        nn.init.normal_(up)
    with torch.inference_mode():  # the quick way would pass by the adapters
        torch.testing.assert_close(encoder.eval()(inputs), encoder.train()(inputs))


def peft_like() -> nn.Module:
    block = Block()
    return freeze(nn.Sequential(block, PeftLike(nn.Linear(3, 3), 2)), ["0", "!0.head"])


class Gpt2(nn.Module):
    """A tiny GPT-2 of Hugging Face, whose linear layers are of their own kind, and a head."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 8, "vocab_size": 20}
        ends = {"bos_token_id": 1, "eos_token_id": 1}
        self.body = transformers.GPT2Model(transformers.GPT2Config(**sizes, **dropout, **ends))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs_embeds=x).last_hidden_state.mean(1))


def gpt2() -> nn.Module:
    return adapt(freeze(Gpt2(), ["*", "!head"]), 2)


def gpt2_of_peft() -> nn.Module:
    model, peft = Gpt2(), pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model.body = peft.get_peft_model(model.body, settings)
    return freeze(model, ["*.lora_A.*"])


HUGGING_FACE = [
    pytest.param(build, marks=pytest.mark.slow, id=build.__name__)  # imports take seconds
    for build in (gpt2, gpt2_of_peft)
]


@pytest.mark.slow
def test_an_adapter_beside_a_layer_of_gpt2_adds_what_it_says() -> None:
    utilities = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(1)
    layer, inputs = utilities.Conv1D(7, 5), torch.randn(2, 3, 5)
    expected = layer(inputs)
    adapted = adapt(freeze(layer, ["*"]), 2)
    assert torch.equal(adapted(inputs), expected)
    nn.init.normal_(adapted.up.weight)
    change = inputs @ (adapted.up.weight @ adapted.down.weight).T
    torch.testing.assert_close(adapted(inputs), expected + change)


@pytest.mark.parametrize("build", HUGGING_FACE)
def test_of_a_hugging_face_model_only_adapters_and_head_are_trained(build) -> None:
    torch.manual_seed(2)
    module, draw = build(), np.random.default_rng(0)
    trained = {slot.name for slot in layout_of(module)}
    assert {"head.weight", "head.bias"} < trained
    others = trained - {"head.weight", "head.bias"}
    assert all(name.endswith((".up.weight", ".lora_B.default.weight")) for name in others)
    assert any("attn.c_attn" in name for name in others)
    inputs, labels = draw.standard_normal((40, 5, 8)).astype(np.float32), draw.integers(0, 3, 40)
    data = fv.Federation.from_arrays(inputs, labels, np.arange(40) % 8, classes=3)
    local = fv.LocalTraining(fv.LearningRate(0.5), steps=1)
    everyone = fv.CohortRule(rate=1.0)
    method = fv.dp_fedavg(rounds=2, cohort=everyone, local=local, clip=fv.Clip(1.0))
    plan = fv.plan(method, data, module, budget=fv.Budget(epsilon=8.0, delta=1e-5))
    assert plan.guarantee is not None
    assert plan.guarantee.certified
    before, run = frozen_part(plan.module), Run(plan)
    run.finish()
    assert not torch.equal(run.state.weights, plan.start)
    after = frozen_part(run.model())
    assert before.keys() == after.keys() != set()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: adapt(freeze(Block(), ["*", "!head"]), 2), id="own"),
        pytest.param(peft_like, id="like peft"),
        *HUGGING_FACE,
    ],
)
def test_records_are_protected_beside_frozen_layers(build, secure: bool) -> None:
    """Clipped gradients of single examples are those of autograd, one example at a time."""
    torch.manual_seed(2)
    module, draw = build(), np.random.default_rng(0)
    inputs = draw.standard_normal((12, 5, 8)).astype(np.float32)
    labels = draw.integers(0, 3, 12)
    data = fv.Federation.from_arrays(inputs, labels, np.zeros(12, int), classes=3, test_fraction=0)
    clip = fv.GradientClip(0.05, per_example=True)
    rule = fv.LocalTraining(fv.LearningRate(1.0), steps=1, batch_size=12, gradient_clip=clip)
    layout, start = layout_of(module), flatten(module)
    job = Job(data, module, layout, rule, UpdatePipeline(), Randomness(1), secure)
    found = -summed(build_engine(job), job, RoundRequest(start, np.array([0]), 0)).total * 12
    total = torch.zeros_like(start)
    for x, y in zip(torch.from_numpy(inputs), torch.from_numpy(labels), strict=True):
        loss = nn.functional.cross_entropy(module(x[None]), y[None])
        own = [one for one in module.parameters() if one.requires_grad]
        each = torch.cat([one.flatten() for one in torch.autograd.grad(loss, own)])
        total += each * min(1.0, 0.05 / float(each.norm()))
    torch.testing.assert_close(found.float(), total, rtol=1e-4, atol=1e-6)


def test_a_start_fills_what_fits_and_refuses_a_frozen_gap(tmp_path: Path) -> None:
    source, other = (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, n)) for n in (2, 5))
    save_file({k: v.contiguous() for k, v in source.state_dict().items()}, tmp_path / "a")
    freeze(other, ["0"])
    head = other[1].weight.detach().clone()
    said = start_from(other, tmp_path / "a").sentence
    assert torch.equal(other[0].weight, source[0].weight)
    assert torch.equal(other[1].weight, head)
    assert "new are 1.weight, 1.bias" in said
    adapted = adapt(freeze(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), ["*"]), 1)
    start_from(adapted, tmp_path / "a")
    assert torch.equal(adapted(torch.ones(1, 4)), source(torch.ones(1, 4)))
    with pytest.raises(ConfigError, match="which is frozen"):
        start_from(freeze(nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 2)), ["0"]), tmp_path / "a")
    with pytest.raises(ConfigError, match="nothing that fits"):
        start_from(nn.Linear(7, 7), tmp_path / "a")
    (tmp_path / "b").write_bytes(b"no weights")
    for name in ("b", "c", "."):
        with pytest.raises(ConfigError, match=r"model\.start"):
            start_from(source, tmp_path / name)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (('model.frozen=["9"]',), "there are 1.weight"),
        (("model.adapter_rank=2",), "there is none"),
        (('model.frozen=["backbone"]', "model.adapter_rank=0"), "at least 1"),
        (('model.frozen=["*"]',), "no trainable parameters"),
    ],
)
def test_what_makes_no_sense_is_refused(more: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(*more)


def test_a_guarantee_names_its_start(tmp_path: Path) -> None:
    plain = planned(seed=None)
    named = {name: one.detach().contiguous() for name, one in plain.module.named_parameters()}
    save_file(named, tmp_path / "public.safetensors")
    started = planned(f"model.start={tmp_path}/public.safetensors", seed=None)
    assert started.guarantee is not None
    assert started.guarantee.certified
    assert "public.safetensors (SHA-256" in started.guarantee.statement
    said = {"fedveil": json.dumps({"description": json.dumps({"data": "patients.csv"})})}
    save_file(named, tmp_path / "other.safetensors", said)
    other = planned(f"model.start={tmp_path}/other.safetensors", seed=None).guarantee
    assert other is not None
    assert not other.certified
    assert "made of patients.csv, which may be the protected data under another" in other.reason
    said = {"fedveil": json.dumps({"description": json.dumps({"data": "mnist", "public": True})})}
    save_file(named, tmp_path / "third.safetensors", said)
    third = planned(f"model.start={tmp_path}/third.safetensors", seed=None).guarantee
    assert third is not None
    assert third.certified
    (said_of,) = [each for each in third.rests_on if "third.safetensors" in each]
    assert said_of.endswith("made of mnist. That those data are public is declared.")


def test_from_one_run_to_the_next_and_to_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A public run's model file is the start of a private one, which predicts with all of it."""
    line = ["run", *(part for one in (*JOB, *MLP) for part in ("--set", one)), "--no-report"]
    public, private = tmp_path / "public", tmp_path / "private"
    assert main([*line, "--set", "training.method=fedavg", "--output", str(public)]) == 0
    frozen = ["--set", 'model.frozen=["backbone"]', "--set", "model.adapter_rank=2"]
    start = ["--set", f"model.start={public}/model.safetensors"]
    assert main([*line, *frozen, *start, "--output", str(private)]) == 0
    promised = json.loads((private / "guarantee.json").read_text())
    assert not promised["certified"]  # they were trained on these very data before
    assert "model.safetensors (SHA-256" in promised["reason"]
    capsys.readouterr()
    before, after = (load_file(each / "model.safetensors") for each in (public, private))
    assert torch.equal(before["1.weight"], after["1.layer.weight"])
    assert not torch.equal(before["5.weight"], after["5.weight"])
    model = load_run(private)
    inputs = np.random.default_rng(1).random((3, 8, 8)).astype(np.float32)
    again = load_run(private)
    for one in (model, again):
        assert frozen_part(one.module).keys() == {
            f"{layer}.{part}"
            for layer in (1, 3)
            for part in ("layer.weight", "layer.bias", "down.weight")
        }
        assert torch.equal(one.module.get_parameter("1.down.weight"), after["1.down.weight"])
    found = [one.module(torch.from_numpy(inputs)) for one in (model, again)]
    assert torch.equal(*found)
    assert flatten(model.module).numel() == layout_of(again.module).size


def test_a_run_leaves_its_plan_s_module_as_it_was() -> None:
    """In a notebook the next plan is made with the same module: it would start from what the last
    run, perhaps one without noise, has learnt of the protected data."""
    plan = planned(seed=1)
    before = flatten(plan.module)
    run = Run(plan)
    run.finish()
    run.scores()
    assert not torch.equal(flatten(run.model()), before)
    assert torch.equal(flatten(plan.module), before)


@pytest.mark.parametrize("part", ["whole", "copied", "its first layers"])
def test_a_module_that_was_trained_on_the_same_data_certifies_nothing(part: str) -> None:
    first, last = planned(seed=1), planned(seed=None)
    run = Run(first)
    run.finish()
    start = run.model()
    if part == "copied":
        start = copy.deepcopy(start)
    elif part == "its first layers":
        start = torch.nn.Sequential(*list(start)[:-1], torch.nn.Linear(9, 10))  # type: ignore[call-overload]
    budget = fv.Budget(epsilon=8.0)
    again = fv.plan(last.method, last.federation, start, budget=budget).guarantee
    assert again is not None
    assert not again.certified
    assert "trained on" in again.reason
    elsewhere = replace(last.federation, name="other data")
    public = fv.plan(last.method, elsewhere, start, budget=budget).guarantee
    assert public is not None
    assert public.certified
    assert any("That those data are public is declared" in one for one in public.rests_on)
