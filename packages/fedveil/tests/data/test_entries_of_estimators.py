"""A single entry neither stops a certified fit nor stands in its error."""

import numpy as np

from fedveil.tune.estimator import DPFedClassifier


def outcome(odd: str) -> str:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(400, 2)).round(3)
    text = inputs.astype(str)
    text[5, 0] = odd
    number = {"type": "number", "min": -3, "max": 3}
    made = DPFedClassifier(
        classes=[0, 1],
        schema={"x0": number, "x1": number},
        unit="record",
        settings={
            "training.method": "dp-sgd",
            "training.batch_rate": 1.0,
            "training.rounds": 1,
            "training.learning_rate": 0.1,
            "privacy.clip_norm": 0.5,
        },
    )
    try:
        made.fit(text, (inputs[:, 0] > 0).astype(int))
    except (ValueError, TypeError) as error:
        return str(error)
    return f"certified {made.guarantee_.certified}"


def test_one_entry_decides_nothing() -> None:
    assert outcome("0.5") == outcome("sick")
