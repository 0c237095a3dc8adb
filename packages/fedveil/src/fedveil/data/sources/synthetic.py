"""Made-up populations of any size, drawn straight into client order: no copy is ever made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import check_fields, count, not_negative, one_of
from fedveil.data.assignment import generator
from fedveil.data.federation import Examples, Federation, Task

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Synthetic:
    """Clients with linear or logistic data around one true weight vector.

    Inputs are standard normal plus a mean of the client's own (`heterogeneity` is its standard
    deviation a coordinate); targets follow `inputs @ weights + bias` with `weights` of norm
    `signal`: plus standard normal noise of deviation `noise` (regression), or a coin with the
    logistic probability (classification). The best possible squared error is `noise**2`.
    """

    task: Task
    clients: int = 1000
    examples_per_client: int = 20
    features: int = 20
    test_examples: int = 2000
    signal: float = 2.0
    noise: float = 0.5
    heterogeneity: float = 0.0
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, clients=count, examples_per_client=count, features=count)
        check_fields(self, test_examples=count, dtype=one_of(DTYPES))
        check_fields(self, signal=not_negative, noise=not_negative, heterogeneity=not_negative)

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """The truth: `features` weights and the bias."""
        draw = generator(self.seed, "synthetic weights")
        weights = draw.standard_normal(self.features + 1)
        return (weights * (self.signal / np.linalg.norm(weights))).astype(np.float32)

    def federation(self) -> Federation:
        rows = self.clients * self.examples_per_client
        train = self._examples(rows, self.examples_per_client, "synthetic train")
        # Every test example comes from a client of its own, whom nobody has seen.
        test = self._examples(self.test_examples, 1, "synthetic test")
        return Federation(
            train=train,
            offsets=np.arange(0, rows + 1, self.examples_per_client, dtype=np.int64),
            test=test,
            task=self.task,
            classes=2 if self.task is Task.CLASSIFICATION else 0,
            name=NAMES[self.task],
            verified=True,
        )

    def _examples(self, rows: int, each: int, purpose: str, block: int = 1 << 14) -> Examples:
        """`rows` examples, `each` a client, a block of clients at a time."""
        draw = generator(self.seed, purpose)
        weights = self.weights
        inputs = np.empty((rows, self.features), dtype=self.dtype)
        classify = self.task is Task.CLASSIFICATION
        targets = np.empty(rows, dtype=np.int64 if classify else np.float32)
        step = max(1, block // each) * each
        scratch = np.empty((min(step, rows), self.features), dtype=np.float32)
        for start in range(0, rows, step):
            part = scratch[: min(step, rows - start)]
            draw.standard_normal(dtype=np.float32, out=part)
            if self.heterogeneity:
                means = draw.standard_normal((len(part) // each, self.features), dtype=np.float32)
                part += np.repeat(self.heterogeneity * means, each, axis=0)
            score = part @ weights[:-1] + weights[-1]
            luck = draw.random(len(part), dtype=np.float32) if classify else None
            here = slice(start, start + len(part))
            inputs[here] = part
            if luck is not None:
                targets[here] = luck * (1 + np.exp(-score)) < 1
            else:
                shocks = draw.standard_normal(len(part), dtype=np.float32)
                targets[here] = score + np.float32(self.noise) * shocks
        return Examples(inputs, targets)


NAMES = {
    Task.REGRESSION: "synthetic-linear",
    Task.CLASSIFICATION: "synthetic-logistic",
}
WHAT = {
    Task.REGRESSION: "made-up clients around one linear model, of any number and size",
    Task.CLASSIFICATION: "made-up clients around one logistic model, of any number and size",
}
