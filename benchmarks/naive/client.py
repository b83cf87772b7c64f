"""A client that trains, gathers its prototypes and evaluates, each with a new data loader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.naive.files import Sample, in_order, loader, read_network, write_network, write_samples
from benchmarks.naive.prototypes import Rows, average, gather, nearest
from tinyproto.algorithms.base import Client

Batches = list[list[int]]


class NaiveClient:
    """One client, with the network and the samples of the federation it is compared with."""

    def __init__(self, client: Client, folder: Path, batch_size: int, learning_rate: float, proto_weight: float):
        self.id = client.id
        self.device = client.device
        self.model = client.model
        self.num_classes = client.num_classes
        self.class_counts = client.class_counts.tolist()
        self.train_samples, self.test_samples = len(client.train), len(client.test)
        self.train_file, self.test_file = folder / f"train{client.id}.npz", folder / f"test{client.id}.npz"
        write_samples(self.train_file, client.train)
        write_samples(self.test_file, client.test)
        self.batch_size = batch_size
        self.proto_weight = proto_weight
        self.learning_rate = learning_rate
        self.network_file = folder / f"network{client.id}.pt"
        write_network(self.network_file, self.model)
        self.prototypes: Rows = {}

    def train(self, epochs: Sequence[Batches], received: Rows) -> dict[str, float]:
        """Run all epochs; return the sample-weighted mean losses of the last."""
        read_network(self.network_file, self.model)
        optimiser = torch.optim.SGD(self.model.parameters(), lr=self.learning_rate)
        self.model.train()
        sums = {"cross_entropy": 0.0, "regulariser": 0.0}
        for batches in epochs:
            sums = dict.fromkeys(sums, 0.0)
            for inputs, labels in self._loaded(self.train_file, batches):
                output = self.model(inputs)
                cross_entropy = functional.cross_entropy(output.logits, labels)
                pull = functional.mse_loss(self._wanted(output.features, labels, received), output.features)
                loss = cross_entropy + self.proto_weight * pull
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                sums["cross_entropy"] += cross_entropy.item() * len(labels)
                sums["regulariser"] += pull.item() * len(labels)
        write_network(self.network_file, self.model)
        samples = sum(len(batch) for batch in epochs[-1])
        return {name: value / samples for name, value in sums.items()}

    def _loaded(self, path: Path, batches: Batches) -> Iterator[Sample]:
        for inputs, labels in loader(path, batches):
            yield inputs.to(self.device), labels.to(self.device)

    @staticmethod
    def _wanted(features: Tensor, labels: Tensor, received: Rows) -> Tensor:
        """Return each sample's global prototype, or the feature itself if its class has none."""
        wanted = features.detach().clone()
        for index, label in enumerate(labels):
            if int(label.item()) in received:
                wanted[index, :] = received[int(label.item())]
        return wanted

    @torch.no_grad()
    def collect(self, batches: Batches | None) -> None:
        """Compute local prototypes with the trained network over these batches, or over all samples."""
        read_network(self.network_file, self.model)
        self.model.eval()
        gathered: defaultdict[int, list[Tensor]] = defaultdict(list)
        for inputs, labels in self._loaded(self.train_file, batches or in_order(self.train_samples, self.batch_size)):
            gather(gathered, self.model.extractor(inputs), labels)
        self.prototypes = average(gathered)

    @torch.no_grad()
    def evaluate(self, received: Rows) -> dict[str, int]:
        """Count the correct test samples by head, by global and by local prototype."""
        read_network(self.network_file, self.model)
        self.model.eval()
        rules = {name: rows for name, rows in (("global", received), ("local", self.prototypes)) if rows}
        correct = dict.fromkeys(("head", *rules), 0)
        for inputs, labels in self._loaded(self.test_file, in_order(self.test_samples, self.batch_size)):
            features = self.model.extractor(inputs)
            correct["head"] += int((torch.argmax(self.model.head(features), dim=1) == labels).sum().item())
            for rule, prototypes in rules.items():
                guesses = nearest(features, prototypes, self.num_classes)
                correct[rule] += int((guesses == labels).sum().item())
        return correct
