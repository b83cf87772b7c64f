"""FedTGP: FedProto's client, and a server that trains its global prototypes to lie apart.

Jianqing Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, ClientInfo, FederationSpec, Round, Update, positive
from tinyproto.algorithms.fedproto import FedProtoHyper, broadcast_rows, prototype_algorithm, received_rows
from tinyproto.algorithms.transform import Dense, Transform
from tinyproto.core.aggregate import simple_mean, stack_rows
from tinyproto.core.messages import Message
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams, global_randomness
from tinyproto.core.task import ParamGroup, State, Task, TensorData, Trainer, batch_plan
from tinyproto.core.trainable import TrainablePrototypes, adaptive_margin, contrastive_step, distance_penalty

OfferedClasses = Literal["uploaded", "all"]


@dataclass(frozen=True)
class FedTGPHyper(FedProtoHyper):
    """FedProto's, and how the server fits."""

    server_epochs: Annotated[int, "of the server's fit, per round; above 0"] = 100
    server_learning_rate: Annotated[float, "of the server's SGD; above 0"] = 0.01
    server_batch_size: Annotated[int, "uploads per step of the fit; above 0"] = 32
    margin_cap: Annotated[float, "τ, the upper bound of the adaptive margin; above 0"] = 100.0
    offered_classes: Annotated[OfferedClasses, "classes the server offers: those ever uploaded, or all"] = "uploaded"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(
            server_epochs=self.server_epochs,
            server_learning_rate=self.server_learning_rate,
            server_batch_size=self.server_batch_size,
            margin_cap=self.margin_cap,
        )


class TrainableServer:
    """Keeps the trainable network, and the rows it last gave."""

    def __init__(self, hyper: FedTGPHyper, federation: FederationSpec, transform: Transform) -> None:
        self.hyper = hyper
        self.federation = federation
        self.transform = transform

    def init(self, streams: Streams) -> State:
        """A random network, no class uploaded yet, nothing to send."""
        with global_randomness(streams.derive("trainable prototypes")):
            network = TrainablePrototypes(self.federation.num_classes, self.federation.proto_dim)
        return self._state(network, Prototypes.absent(self.federation.num_classes, self.transform.width))

    def broadcast(self, state: State, client: ClientInfo) -> Message:  # noqa: ARG002
        """All learned rows, the same for every client."""
        return broadcast_rows(state)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams
    ) -> State:
        """Fit the network to the uploads, one by one rather than averaged, and read the prototypes off it."""
        received = received_rows(updates)
        if not received:
            return state
        uploads = [self.transform.reconstruct(rows) for rows in self.transform.normalise(received)]
        offered = state["present"] | torch.stack([upload.present for upload in uploads]).any(0)
        if self.hyper.offered_classes == "all":
            offered = torch.ones_like(offered)

        network = self._network(state).to(trainer.device)
        margin = adaptive_margin(simple_mean(uploads), self.hyper.margin_cap)
        trainer.fit([self._fit(network, uploads, distance_penalty(margin, offered), trainer.device, round_, streams)])
        with torch.no_grad():
            learned = network().cpu()
        learned = torch.where(offered.unsqueeze(1), learned, torch.zeros_like(learned))
        return {**self._state(network, self.transform.compress(Prototypes(learned, offered))), "margin": margin}

    def _fit(
        self, network: TrainablePrototypes, uploads: Sequence[Prototypes], penalty: Tensor, device: torch.device,
        round_: Round, streams: Streams,
    ) -> Task:  # fmt: skip
        values, labels = stack_rows(uploads)
        shuffle = streams.generator("server batches", round_number=round_.number)
        plan = batch_plan(
            len(labels), self.hyper.server_batch_size, self.hyper.server_epochs, last="keep", shuffle=shuffle
        )
        return Task(
            name="the server",
            key=("fedtgp server", *values.shape[1:]),
            modules=nn.ModuleDict({"prototypes": network}),
            groups=[ParamGroup("prototypes", self.hyper.server_learning_rate)],
            context={"penalty": penalty.to(device)},
            loss=contrastive_step,
            part_names=("contrastive",),
            data=TensorData(values, labels).to(device),
            plan=plan,
            num_classes=self.federation.num_classes,
            seed=0,
        )

    def _network(self, state: State) -> TrainablePrototypes:
        with global_randomness(0):  # the meta device would draw nothing, but load a second's worth of modules for it
            network = TrainablePrototypes(self.federation.num_classes, self.federation.proto_dim)
        network.load_state_dict({name: state[f"network.{name}"] for name in network.state_dict()})
        return network

    @staticmethod
    def _state(network: TrainablePrototypes, rows: Prototypes) -> State:
        weights = {f"network.{name}": value.detach().cpu().clone() for name, value in network.state_dict().items()}
        return {**weights, **rows._asdict()}


def build_fedtgp(name: str, hyper: FedTGPHyper, federation: FederationSpec, transform: Transform) -> Algorithm:
    """FedTGP over any transform."""
    return prototype_algorithm(name, hyper, federation, transform, TrainableServer(hyper, federation, transform))


def build(hyper: FedTGPHyper, federation: FederationSpec) -> Algorithm:
    """FedTGP as published: prototypes in full."""
    return build_fedtgp("fedtgp", hyper, federation, Dense(federation.proto_dim))


SPEC = AlgorithmSpec("fedtgp", "FedTGP", FedTGPHyper, build)
