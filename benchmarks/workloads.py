"""The workloads: what one round computes, the same in every system.

Imported by the driver and inside every peer's environment, so it needs numpy alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Noise that leaves a network with millions of weights alone. Among so few clients a multiplier of 1
# would drown it within rounds, and numbers that overflow or vanish are slow to compute with.
_LITTLE = 0.001


@dataclass(frozen=True)
class Workload:
    """A federation's shape and the arithmetic of one round.

    `cohort` of the `clients` (drawn without replacement) each take `epochs` passes over their
    `records` in batches of `batch_size`, by plain SGD from the shared weights. Then the update is
    clipped and noise is added to the sum, or (`per_example`) each example's gradient was clipped
    and every step's gradient noised.
    """

    name: str
    summary: str
    model: str
    inputs: tuple[int, ...]  # shape of one example
    outputs: int  # classes, or 1 for a number
    clients: int
    cohort: int
    records: int  # of each client
    batch_size: int
    epochs: int
    hidden: tuple[int, ...] = ()  # widths of an MLP
    learning_rate: float = 0.05
    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    per_example: bool = False
    kernel_bound: bool = False  # one client keeps a core busy with large kernels

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        fields: dict[str, Any] = json.loads(text)
        fields |= {name: tuple(fields[name]) for name in ("inputs", "hidden")}
        return cls(**fields)

    @property
    def batches(self) -> int:
        """Batches of one pass."""
        return -(-self.records // self.batch_size)

    @property
    def steps(self) -> int:
        """Local steps of one client in one round."""
        return self.epochs * self.batches

    @property
    def regression(self) -> bool:
        return self.model == "linear"

    @property
    def sequence(self) -> bool:
        return self.model == "lstm"


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "W1",
            "softmax regression 784x10, 50 clients of 500, batch 10, 25 steps",
            model="logistic",
            inputs=(784,),
            outputs=10,
            clients=500,
            cohort=50,
            records=50,
            batch_size=10,
            epochs=5,
        ),
        Workload(
            "W2",
            "linear regression, 11 weights, 500 clients, 1 full-batch step",
            model="linear",
            inputs=(10,),
            outputs=1,
            clients=500,
            cohort=500,
            records=80,
            batch_size=80,
            epochs=1,
        ),
        Workload(
            "W2x12",
            "linear regression, 11 weights, 500 clients, 12 full-batch steps",
            model="linear",
            inputs=(10,),
            outputs=1,
            clients=500,
            cohort=500,
            records=80,
            batch_size=80,
            epochs=12,
        ),
        Workload(
            "W3",
            "MLP 105-64-32-2, 10 clients, batch 64, 10 steps, per-example clipping and noise",
            model="mlp",
            inputs=(105,),
            outputs=2,
            clients=10,
            cohort=10,
            records=640,
            batch_size=64,
            epochs=1,
            hidden=(64, 32),
            per_example=True,
        ),
        Workload(
            "W4",
            "CNN 28x28 (5x5x32, 5x5x64, 512, 62), 6 clients, batch 64, 30 steps",
            model="cnn",
            inputs=(28, 28, 1),
            outputs=62,
            clients=6,
            cohort=6,
            records=192,
            batch_size=64,
            epochs=10,
            noise_multiplier=_LITTLE,
            kernel_bound=True,
        ),
        Workload(
            "W5",
            "the same CNN for 32x32x3 and 10 classes, 6 clients, batch 50, 10 steps",
            model="cnn",
            inputs=(32, 32, 3),
            outputs=10,
            clients=6,
            cohort=6,
            records=500,
            batch_size=50,
            epochs=1,
            noise_multiplier=_LITTLE,
            kernel_bound=True,
        ),
        Workload(
            "W6",
            "character LSTM 2 x 256, sequence 80, 4 clients, batch 50, 4 steps",
            model="lstm",
            inputs=(80,),
            outputs=80,
            clients=4,
            cohort=4,
            records=200,
            batch_size=50,
            epochs=1,
            noise_multiplier=_LITTLE,
            kernel_bound=True,
        ),
        Workload(
            "W7",
            "ResNet-18 with group norm, 32x32x3, 2 clients, batch 50, 1 step",
            model="resnet18",
            inputs=(32, 32, 3),
            outputs=10,
            clients=2,
            cohort=2,
            records=50,
            batch_size=50,
            epochs=1,
            noise_multiplier=_LITTLE,
            kernel_bound=True,
        ),
        *(
            Workload(
                name,
                f"{summary}, record level: 2 clients, batch {batch}, {steps} steps",
                model=model,
                inputs=inputs,
                outputs=outputs,
                clients=2,
                cohort=2,
                records=batch * steps,
                batch_size=batch,
                epochs=1,
                noise_multiplier=_LITTLE,
                per_example=True,
                kernel_bound=True,
            )
            for name, summary, model, inputs, outputs, batch, steps in (
                ("W8", "the CNN of W4", "cnn", (28, 28, 1), 62, 64, 2),
                ("W8x256", "the CNN of W4", "cnn", (28, 28, 1), 62, 256, 2),
                ("W8-lstm", "the LSTM of W6", "lstm", (80,), 80, 50, 2),
                ("W8-resnet", "the ResNet-18 of W7", "resnet18", (32, 32, 3), 10, 50, 1),
            )
        ),
    )
}


@dataclass(frozen=True, eq=False)
class Data:
    """Synthetic records: client `i` owns rows `i * records : (i + 1) * records`."""

    inputs: npt.NDArray[Any]  # [clients * records, ...]
    targets: npt.NDArray[Any]  # [clients * records] (sequences: [..., length])

    def of_client(self, client: int, records: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        rows = slice(client * records, (client + 1) * records)
        return self.inputs[rows], self.targets[rows]


def draw(workload: Workload) -> Data:
    """Data of the right shape, the same in every process: speed does not depend on the values."""
    generator = np.random.default_rng(0)
    rows = workload.clients * workload.records
    if workload.sequence:
        tokens = generator.integers(0, workload.outputs, (rows, *workload.inputs))
        return Data(tokens, np.roll(tokens, -1, axis=1))
    inputs = generator.standard_normal((rows, *workload.inputs), dtype=np.float32)
    if workload.regression:
        return Data(inputs, generator.standard_normal(rows, dtype=np.float32))
    return Data(inputs, generator.integers(0, workload.outputs, rows))
