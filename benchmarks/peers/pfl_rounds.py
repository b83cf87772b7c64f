"""The same rounds with pfl-research, written as its own CIFAR-10 benchmark is.

One model object trains all users in turn; users' samples are tensors on the device, normalised once. Only the sampler
differs: it returns the clients that tinyproto draws.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.work import Work, cohort, initial_network
from tinyproto.experiment import Experiment
from tinyproto.models.split import SplitModel

MISSING = "pfl-research is not installed, so tinyproto ran alone; docs/reference/benchmarks.md says how to install it"


def has_pfl() -> bool:
    """Return True if pfl-research can be imported."""
    return importlib.util.find_spec("pfl") is not None


class Counted(nn.Module):
    """A network with the two methods that pfl-research calls; counts its training steps."""

    def __init__(self, network: SplitModel) -> None:
        super().__init__()
        self.network = network
        self.steps = 0

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of a training batch."""
        self.train()
        self.steps += 1
        return functional.cross_entropy(self.network(inputs).logits, labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return the loss of a batch, which pfl-research asks for in its first round."""
        from pfl.metrics import Weighted

        self.eval()
        loss = functional.cross_entropy(self.network(inputs).logits, labels, reduction="sum")
        return {"loss": Weighted(float(loss), len(labels))}


class PflRounds:
    """pfl-research's rounds, one at a time."""

    def __init__(self, work: Work, experiment: Experiment) -> None:
        os.environ["PFL_PYTORCH_DEVICE"] = experiment.device
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.callback.base import TrainingProcessCallback
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.metrics import Metrics
        from pfl.model.pytorch import PyTorchModel

        class OneRound(TrainingProcessCallback):  # type: ignore[misc]
            """Stops after each round; the next `run` continues."""

            def after_central_iteration(self, *_given: Any, **_named: Any) -> tuple[bool, Any]:
                return True, Metrics()

        self.steps: int | None = None  # of the latest round
        self.counted = Counted(initial_network(experiment)).to(experiment.device)
        self.model = PyTorchModel(
            model=self.counted,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self.counted.parameters(), lr=1.0),
        )
        users = FederatedDataset.from_slices(_users(experiment), _sampler(experiment).__next__)
        never = 1_000_000
        self.asked = {
            "algorithm_params": NNAlgorithmParams(
                central_num_iterations=never, evaluation_frequency=never, train_cohort_size=work.participants,
                val_cohort_size=None,
            ),
            "backend": SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]),
            "model_train_params": NNTrainHyperParams(
                local_learning_rate=work.learning_rate, local_num_epochs=1, local_batch_size=work.batch_size
            ),
            "model_eval_params": NNEvalHyperParams(local_batch_size=None),
            "callbacks": [OneRound()],
            "send_metrics_to_platform": False,
        }  # fmt: skip
        self.algorithm = FederatedAveraging()
        self.loop = asyncio.new_event_loop()  # where pfl-research runs a round

    def play(self) -> Mapping[str, float]:
        """Run the next round; return its seconds."""
        before, start = self.counted.steps, time.perf_counter()
        asyncio.set_event_loop(self.loop)
        try:
            self.algorithm.run(model=self.model, **self.asked)
        finally:
            asyncio.set_event_loop(None)
        self.steps = self.counted.steps - before
        return {"total": time.perf_counter() - start}

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Return the shared network."""
        return {name: value.detach().cpu() for name, value in self.counted.network.named_parameters()}

    def close(self) -> None:
        """Close the event loop."""
        self.loop.close()


def _users(experiment: Experiment) -> dict[int, tuple[Tensor, ...]]:
    """Return each client's training samples as its network sees them, on the device."""
    placed = experiment.data.to(experiment.device)
    return {client: tuple(placed.train(client).batch(slice(None))) for client in range(placed.num_clients)}


def _sampler(experiment: Experiment) -> Iterator[int]:
    """Yield the clients of round 1, then those of round 2, and so on."""
    number = 1
    while True:
        yield from cohort(experiment, number)
        number += 1
