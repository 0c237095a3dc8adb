"""Liang et al.'s networks: the paper's settings for SVHN and Shakespeare, and ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reproduction.case import Data
from reproduction.experiment import Difference, Scale


@dataclass(frozen=True)
class Task:
    """One data set at one scale."""

    data: Data
    clients: int
    rate: float
    rounds: int
    epochs: int
    batch: int
    clip: float
    learning_rate: float
    model: str
    paper_cohort: int
    multipliers: tuple[float, ...]
    more: tuple[tuple[str, Any], ...] = ()  # recipe keys of a smaller network
    every: int | None = None  # rounds between looks; tables and curves then share their runs
    proved: tuple[float, ...] | None = None  # multipliers whose epsilon also runs certified

    @property
    def cohort(self) -> int:
        return round(self.rate * self.clients)


# Convolutions of many small clients at once; elsewhere the choice is left to the package.
_TOGETHER = (("engine.name", "generic"), ("engine.chunk", 100))


def svhn(scale: Scale) -> Task:
    if scale is Scale.QUICK:
        return Task(Data("svhn", (("clients", 2000), ("pixels", "standard")), "iid"), 2000, 0.05,
                    200, 1, 3, 0.7, 0.5, "cnn-lean", 100, (1.0, 1.5),
                    (("model.hidden", (16, 32)), *_TOGETHER), 10)  # fmt: skip
    return Task(Data("svhn-extra"), 2000, 0.05, 200, 10, 50, 0.7, 0.1, "liang-cnn", 100,
                (1.0, 1.1, 1.3, 1.5))  # fmt: skip


def shakespeare(scale: Scale) -> Task:
    # 64 overlapping samples, the paper's least, are a text of two windows.
    roles = (("clients", 975), ("at_least", 2))
    if scale is Scale.QUICK:
        return Task(Data("shakespeare", (*roles, ("cap", 8)), "owner"), 975, 0.04, 32, 5, 8, 5.0,
                    3.0, "lstm", 195, (1.0, 6.4), (("model.hidden", (64,)),), 4,
                    (6.4,))  # fmt: skip
    return Task(Data("shakespeare", roles, "owner"), 975, 0.2, 100, 5, 50, 5.0, 1.47, "lstm", 195,
                (1.0, 1.2, 1.4, 1.6))  # fmt: skip


# The paper's own epsilons: (clients, sampling) -> z -> epsilon.
PRINTED: dict[tuple[int, str], dict[float, float]] = {
    (2000, "fixed"): {1.0: 8.66, 1.1: 7.84, 1.3: 6.34, 1.5: 5.23},
    (2000, "poisson"): {1.0: 5.07, 1.1: 4.24, 1.3: 3.19, 1.5: 2.56},
    (975, "fixed"): {1.0: 27.24, 1.2: 22.43, 1.4: 17.69, 1.6: 14.94},
    (975, "poisson"): {1.0: 14.04, 1.2: 10.41, 1.4: 8.22, 1.6: 6.78},
}

# Rows that can be read: (sampling, smoothing, z) -> accuracy.
SVHN_TABLE = {
    ("fixed", 0.5): (82.72, 84.65, 86.49, 86.32),
    ("fixed", 1.0): (82.39, 84.13, 85.88, 86.39),
    ("poisson", 0.5): (84.27, 85.47, 87.00, 87.50),
    ("poisson", 1.0): (84.65, 85.38, 86.37, 87.26),
}
SHAKESPEARE_TABLE = {
    ("fixed", 0.5): (39.14, 40.27, 41.95, 43.76),
    ("fixed", 1.0): (39.18, 40.94, 42.60, 43.90),
    ("fixed", 1.5): (40.16, 40.89, 42.50, 43.95),
    ("poisson", 0.5): (39.07, 40.02, 42.02, 43.59),
    ("poisson", 1.0): (39.45, 41.07, 42.09, 43.78),
    ("poisson", 1.5): (39.38, 40.99, 42.19, 43.67),
}

SVHN_SETTING = (
    "SVHN with its extra images, 2,000 clients of about 300; CNN of 3.4 M weights",
    "T = 200, rate 0.05, E = 10, batch 50, G = 0.7, learning rate 0.1 x 0.99^t, decay 4e-5",
    "noise multiplier z = 1, 1.1, 1.3, 1.5; epsilon by Rényi accountants; means of 3 runs",
)
SHAKESPEARE_SETTING = (
    "Shakespeare, 975 roles; two LSTM layers of 256; T = 100, rate 0.2, E = 5, batch 50, G = 5",
    "learning rate 1.47 x 0.99^t, decay 4e-5; z = 1, 1.2, 1.4, 1.6; means of 3 runs",
)
SVHN_DIFFERENCES = (
    Difference(
        "images",
        "604,388",
        "quick: the 5,000 at hand, 2 or 3 for each of the 2,000 clients, pixels standardised",
        only=Scale.QUICK,
    ),
    Difference(
        "network",
        "3.4 M weights",
        "quick: 7x7x16 with stride 4, 3x3x32 with stride 2, then the classes, 12,138 weights: the "
        "same noise on each of them is 1/17 as long",
        only=Scale.QUICK,
    ),
    Difference(
        "local training",
        "E = 10 epochs of 6 batches, learning rate 0.1 (figure 4: 0.05 to 0.125)",
        "quick: one step, learning rate 0.5 (figure 4: 0.25 and 0.5); clients, sampling, rounds, "
        "clip, noise and so epsilon are the paper's",
        only=Scale.QUICK,
    ),
    Difference("images", "604,388", "not at hand: full needs a download", only=Scale.FULL),
)
SHAKESPEARE_DIFFERENCES = (
    Difference("edition", "LEAF's", "Moby's: comparable only roughly"),
    Difference(
        "samples",
        "roles with 64 or more, overlapping",
        "windows of 80 characters end to end; 975 of the 1,062 roles with two or more",
    ),
    Difference(
        "size",
        "T = 100, rate 0.2, two layers of 256, batch 50, learning rate 1.47",
        "quick: T = 32, rate 0.04, one layer of 64, 8 windows a role in one batch, learning rate 3",
        only=Scale.QUICK,
    ),
    Difference(
        "noise",
        "z = 1 to 1.6 on the sum of the cohort",
        "quick: z in proportion to the smaller cohort, so that the noise on the average is the "
        "paper's; the epsilons say what that is worth with 39 roles a round; z = 6.4 besides, for "
        "the small network hardly feels z = 1; certified noise for the epsilon of z = 6.4 alone",
        only=Scale.QUICK,
    ),
)
