"""What limits two federations of benchmarks.frontier: the same features on one machine, no noise.

    python -m benchmarks.frontier_limits

CIFAR-10: least squares on the recipe's features of all training images at once, which is solved
exactly; and its recipes' accuracy on the half of the test images that benchmarks.frontier_search
has seen, and on the other, beside least squares on pixels. Shakespeare: how often a character
followed the last 1, 2, ... of them in the training texts; the longest text that was seen decides.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from benchmarks.frontier import jobs, measured
from fedveil.data.federation import Examples, Federation
from fedveil.data.sources import load
from fedveil.planning.assemble import features_of, federation_of
from fedveil.training.models.features import with_features

RIDGE = 0.1  # of 50,000 rows of length 1; between 0.001 and 10 the accuracy hardly changes


def seen(name: str) -> Federation:
    """The data of a recipe, as its model sees them."""
    recipe = dict(jobs(""))[f"best/{name}"]
    federation, features = federation_of(recipe.data), features_of(recipe.model)
    return federation if features is None else with_features(federation, features, keep=True)


def pixels(source: str) -> Federation:
    """Images as rows of length 1, for which nothing was chosen."""
    federation = load(source, clients=1000)

    def rows(examples: Examples) -> Examples:
        inputs = np.asarray(examples.inputs, np.float32).reshape(len(examples), -1)
        return Examples(inputs / np.linalg.norm(inputs, axis=1, keepdims=True), examples.targets)

    return replace(federation, train=rows(federation.train), test=rows(federation.test))


def least_squares(federation: Federation) -> tuple[float, ...]:
    """Accuracy of a linear model with a constant: on training and test examples, and on the first
    and second half of these."""

    def rows(examples: Examples) -> torch.Tensor:
        inputs = torch.from_numpy(np.array(examples.inputs, np.float32)).flatten(1)
        return torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)

    inputs, codes = rows(federation.train), torch.from_numpy(np.array(federation.train.targets))
    wanted = torch.nn.functional.one_hot(codes, federation.classes).float()
    moments = (inputs.T @ inputs).double() + RIDGE * torch.eye(inputs.shape[1])
    weights = torch.linalg.solve(moments, (inputs.T @ wanted).double()).float()

    def accuracy(examples: Examples) -> float:
        found = (rows(examples) @ weights).argmax(1).numpy()
        return float((found == examples.targets).mean())

    parts = (federation.test.take(rows) for rows in halved(federation))
    return accuracy(federation.train), accuracy(federation.test), *map(accuracy, parts)


def halved(federation: Federation) -> list[np.ndarray]:
    """Rows of both halves of the test examples."""
    return np.split(np.arange(len(federation.test)), 2)


def halves(name: str) -> tuple[float, float]:
    """A recipe's accuracy on the first half of its test examples, and on the second."""
    recipe = dict(jobs(""))[f"best/{name}"]
    federation = federation_of(recipe.data)
    first, second = (
        measured(recipe, 1, replace(federation, test=federation.test.take(rows)))["accuracy"]
        for rows in halved(federation)
    )
    return first, second


def counts(federation: Federation, longest: int) -> list[float]:
    """Test accuracy of the most frequent successor of the last 1, 2, ... characters."""
    train, test = federation.train, federation.test
    found, accuracies = np.zeros(test.targets.size, np.int64), []
    for own, other in zip(texts(train, longest), texts(test, longest), strict=True):
        pairs, times = np.unique(np.stack([own, train.targets.ravel()]), axis=1, return_counts=True)
        order = np.lexsort((times, pairs[0]))  # of each text, the most frequent successor last
        known, ends = np.unique(pairs[0][order][::-1], return_index=True)
        best = pairs[1][order][::-1][ends]
        place = np.searchsorted(known, other).clip(max=len(known) - 1)
        found = np.where(known[place] == other, best[place], found)
        accuracies.append(float((found == test.targets.ravel()).mean()))
    return accuracies


def texts(examples: Examples, longest: int) -> list[np.ndarray]:
    """A number for the last 1, 2, ... characters before every place; 80 stands before the first."""
    before = np.asarray(examples.inputs, np.int64)
    number, found = np.zeros_like(before), []
    for _ in range(longest):
        number = 81 * number + before
        found.append(number.ravel())
        before = np.concatenate([np.full((len(before), 1), 80), before[:, :-1]], axis=1)
    return found


def main() -> None:
    fitted, other, *_ = (100 * one for one in least_squares(seen("cifar-even-epsilon-8")))
    print(f"CIFAR-10, least squares: {fitted:.1f} % of training, {other:.1f} % of test")
    print("of the half with a part in the search, and of the other:")
    *_, first, second = (100 * one for one in least_squares(pixels("cifar10")))
    print(f"  least squares on pixels: {first:.1f}, {second:.1f} %")
    for epsilon in (2, 8):
        parts = [100 * one for one in halves(f"cifar-even-epsilon-{epsilon}")]
        print("  recipe for epsilon {}: {:.1f}, {:.1f} %".format(epsilon, *parts), flush=True)
    for length, accuracy in enumerate(counts(seen("shakespeare-epsilon-8"), 5), 1):
        print(f"Shakespeare, counts after the last {length}: {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main()
