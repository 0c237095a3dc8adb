"""Records reach each step as the batches say, without copies that nobody needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Scaling, Task
from fedveil.training.client.batches import draw_batches
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.engines.records import Records

RATE = LearningRate(0.1)
RULES = {
    "in order": LocalTraining(RATE, epochs=1, batch_size=4),
    "again and again": LocalTraining(RATE, epochs=3, batch_size=4),
    "all at once": LocalTraining(RATE, steps=2),
    "a few": LocalTraining(RATE, steps=1, batch_size=2),
}


def make(scaling: Scaling | None = None) -> Federation:
    sizes = [9, 8, 4, 4, 1]
    total = sum(sizes)
    inputs = np.arange(total * 6).reshape(total, 2, 3)
    stored = inputs.astype(np.uint8 if scaling else np.float32)
    examples = Examples(stored, np.arange(total) % 3)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Federation(examples, offsets, examples, Task.CLASSIFICATION, 3, scaling=scaling)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4], [1, 3], [2]], ids=str)
def test_each_step_sees_exactly_its_records(rule: str, clients: list[int]) -> None:
    scaling = Scaling(np.float32(3), np.float32(0.5))
    for federation in (make(), make(scaling)):
        ids = np.array(clients)
        sizes = federation.sizes[ids]
        batches = draw_batches(ids, sizes, RULES[rule], 1, Randomness(4))
        records = Records(federation, ids, sizes, batches)
        wanted = federation.model_inputs(federation.train.inputs)
        for step in range(records.most_steps):
            positions, real = batches.at(step)
            inputs, targets, mask = records.batch(step)
            assert len(inputs) == records.active[step] == int((batches.steps > step).sum())
            for place in range(len(inputs)):
                rows = federation.offsets[ids[place]] + positions[place][real[place]]
                held = slice(None) if mask is None else mask[place]
                assert np.array_equal(inputs[place][held], wanted[rows])
                assert np.array_equal(targets[place][held], federation.train.targets[rows])
        inputs, targets, mask = records.everything()
        for place, client in enumerate(clients):
            rows = slice(*federation.offsets[client : client + 2])
            held = slice(None) if mask is None else mask[place]
            assert np.array_equal(inputs[place][held], wanted[rows])
            assert np.array_equal(targets[place][held], federation.train.targets[rows])


def test_a_single_client_is_a_view_of_the_column_even_of_a_read_only_map(tmp_path: Path) -> None:
    plain = make()
    mapped = Federation.open(plain.save(tmp_path / "data"))
    for federation in (plain, mapped):
        ids, sizes = np.array([1]), np.array([8])
        batches = draw_batches(ids, sizes, RULES["again and again"], 0, Randomness(1))
        with_warnings = Records(federation, ids, sizes, batches)
        begin = federation.train.inputs[9:].__array_interface__["data"][0]
        assert with_warnings.inputs.data_ptr() == begin
        assert isinstance(with_warnings.batch(0)[0], torch.Tensor)


def test_a_few_records_of_a_large_client_do_not_gather_it_all() -> None:
    federation = make()
    ids, sizes = np.array([0, 1]), np.array([9, 8])
    batches = draw_batches(ids, sizes, RULES["a few"], 0, Randomness(1))
    assert Records(federation, ids, sizes, batches).inputs.shape == (1, 2, 2, 2, 3)
