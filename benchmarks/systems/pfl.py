"""pfl: FedAvg with clipped updates and central Gaussian noise, users trained in turn.

Its fastest shape: tensors instead of arrays, user data sets built once so that their batches stay
cut, no evaluation after the first round, no metrics printed, ranks of torchrun.
"""

from __future__ import annotations

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn

from benchmarks import models
from benchmarks.clock import Clock
from benchmarks.systems import Unsupported
from benchmarks.workloads import Workload, draw


class Model(nn.Module):
    """A module as pfl wants it: with its loss and its metrics."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        self.inner = models.build(workload)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs)
        return outputs

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return models.loss(self.workload, self(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, float]:
        with torch.no_grad():
            return {"loss": float(self.loss(inputs, targets))}


class Lap(TrainingProcessCallback):
    """Rank 0 keeps the time, all ranks stop together."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.lap()
        enough = torch.tensor([float(self.clock.enough)])
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(enough, src=0)
        return bool(enough), Metrics()


def run(workload: Workload, variant: str, clock: Clock) -> None:
    if workload.per_example:
        raise Unsupported("pfl clips a step's whole gradient, not each example's")
    data = draw(workload)
    users = [
        Dataset(tuple(torch.from_numpy(part) for part in data.of_client(user, workload.records)))
        for user in range(workload.clients)
    ]
    sampler = get_user_sampler("minimize_reuse", range(workload.clients))
    federation = FederatedDataset(users.__getitem__, sampler)
    mechanism = GaussianMechanism(workload.clip_norm, workload.noise_multiplier)
    module = Model(workload)
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=clock.span.rounds,
            evaluation_frequency=clock.span.rounds + 1,
            train_cohort_size=workload.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(
            federation, federation, postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)]
        ),
        model,
        NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.learning_rate,
            local_batch_size=workload.batch_size,
        ),
        callbacks=[Lap(clock)],
        send_metrics_to_platform=False,
    )
