"""FedTGP: FedProto's client, and a server that trains its global prototypes to lie far from each other.

Jianqing Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, Round, Update, positive
from tinyproto.algorithms.fedproto import (
    AveragingServer,
    FedProtoHyper,
    PrototypeClient,
    Upload,
    prototype_algorithm,
    received_rows,
)
from tinyproto.core.prototypes import TINY, Prototypes, simple_mean, stack_rows, sum_over_holders
from tinyproto.core.streams import Streams, global_randomness
from tinyproto.core.task import Batch, ParamGroup, State, Step, Task, TensorData, Trainer, batch_plan

OfferedClasses = Literal["uploaded", "all"]


@dataclass(frozen=True)
class FedTGPHyper(FedProtoHyper):
    """FedProto's hyper-parameters, and those of the server's fit."""

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


class TrainablePrototypes(nn.Module):
    """FedTGP's network: one learned vector per class through Linear, ReLU, Linear gives the global prototypes."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, dim)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self) -> Tensor:
        """Return all global prototypes, (K, d)."""
        projected: Tensor = self.output(functional.relu(self.hidden(self.embedding.weight)))
        return projected


def pairwise_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return Euclidean distances (N, K); distance and gradient stay finite at zero.

    A CPU expands the square; a GPU takes the differences, which is one kernel instead of ten.
    """
    if left.is_cuda:
        return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    squared = left.square().sum(1, keepdim=True) + right.square().sum(1) - 2.0 * (left @ right.T)
    return squared.clamp_min(TINY).sqrt()


def adaptive_margin(class_centres: Prototypes, cap: float) -> Tensor:
    """Return δ = min(max_k min_{k'≠k} ‖Q_k − Q_k'‖₂, cap) over the classes present; zero if fewer than two are.

    Q_k is the unweighted mean of the uploads of class k.
    """
    centres = class_centres.values[class_centres.present].double()
    if len(centres) < 2:
        return torch.zeros((), device=class_centres.values.device)
    distances = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(torch.inf)
    return distances.min(1).values.max().clamp_max(cap).float()


def distance_penalty(margin: Tensor, offered: Tensor) -> Tensor:
    """Return what is added to the distance from an upload of class j, a row, to each global prototype, (K, K).

    It is the margin δ for its own class and ∞ for classes that are not offered.
    """
    penalty = torch.diag(margin.expand(len(offered)))
    return penalty.masked_fill(~offered, torch.inf)


def margin_contrastive_loss(uploads: Tensor, labels: Tensor, learned: Tensor, penalty: Tensor) -> Tensor:
    """Return the cross-entropy over −distance to each offered global prototype, with the margin δ on the true class."""
    return functional.cross_entropy(-(pairwise_distances(uploads, learned) + penalty[labels]), labels)


def contrastive_step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
    """Take one step of the server's fit: the uploads of this batch against all learned prototypes."""
    loss = margin_contrastive_loss(batch.inputs, batch.labels, modules["prototypes"](), context["penalty"])
    return Step(loss, loss.detach().unsqueeze(0))


@torch.no_grad()
def contrastive_epoch(
    modules: nn.ModuleDict, samples: Batch, sizes: Sequence[int], context: Mapping[str, Tensor], rate: float
) -> Tensor:
    """Take the steps of `contrastive_step` with their gradients written out, in a third of autograd's time."""
    weights = dict(modules["prototypes"].named_parameters())
    embedding, hidden, hidden_bias = weights["embedding.weight"], weights["hidden.weight"], weights["hidden.bias"]
    output, output_bias = weights["output.weight"], weights["output.bias"]
    own = functional.one_hot(samples.labels, len(embedding)).to(embedding.dtype)
    lengths = samples.inputs.square().sum(1, keepdim=True)
    logged = torch.zeros(1, dtype=torch.float64)
    batches = (torch.split(each, list(sizes)) for each in (*samples, own, lengths, context["penalty"][samples.labels]))
    for uploads, labels, is_own, length, penalty in zip(*batches, strict=True):
        active = torch.addmm(hidden_bias, embedding, hidden.T).relu_()  # (K, d)
        learned = torch.addmm(output_bias, active, output.T)  # (K, d)
        squared = torch.addmm(learned.square().sum(1), uploads, learned.T, alpha=-2.0).add_(length)  # (B, K)
        distance = squared.clamp_min(TINY).sqrt_()
        score = torch.log_softmax(-(distance + penalty), 1)
        logged += functional.nll_loss(score, labels, reduction="sum")

        slope = is_own.sub(score.exp_()).div_(distance).mul_(squared >= TINY)  # (B, K)
        of_learned = (learned * slope.sum(0).unsqueeze(1)).addmm_(slope.T, uploads, alpha=-1.0)
        of_hidden = (of_learned @ output).mul_(active > 0.0)
        of_embedding = of_hidden @ hidden
        step = -rate / len(labels)
        output.addmm_(of_learned.T, active, alpha=step)
        output_bias.add_(of_learned.sum(0), alpha=step)
        hidden.addmm_(of_hidden.T, embedding, alpha=step)
        hidden_bias.add_(of_hidden.sum(0), alpha=step)
        embedding.add_(of_embedding, alpha=step)
    return logged


class TrainableServer(AveragingServer):
    """Keeps the trainable network and its last rows; trains on the uploads instead of averaging them."""

    def __init__(self, hyper: FedTGPHyper, federation: FederationSpec, width: int) -> None:
        super().__init__(federation.num_classes, width)
        self.hyper = hyper
        self.federation = federation

    def init(self, streams: Streams) -> State:
        """Return a random network, and rows of which none is present."""
        with global_randomness(streams.derive("trainable prototypes")):
            network = TrainablePrototypes(self.federation.num_classes, self.federation.proto_dim)
        return self._state(network, Prototypes.absent(self.num_classes, self.width))

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams
    ) -> State:
        """Fit the network to the uploads, one by one rather than averaged; its outputs are the global prototypes."""
        received = received_rows(updates)
        if not received:
            return state
        uploads = self.normalise(received)
        offered = state["present"] | torch.stack([upload.present for upload in uploads]).any(0)
        if self.hyper.offered_classes == "all":
            offered = torch.ones_like(offered)

        network = self._network(state).to(trainer.device)
        margin = adaptive_margin(simple_mean(sum_over_holders(uploads)), self.hyper.margin_cap)
        trainer.fit([self._fit(network, uploads, margin, offered, trainer.device, round_, streams)])
        with torch.no_grad():
            learned = network().cpu()
        learned = torch.where(offered.unsqueeze(1), learned, torch.zeros_like(learned))
        return {**self._state(network, self.compress(Prototypes(learned, offered))), "margin": margin}

    def normalise(self, uploads: Sequence[Upload]) -> list[Prototypes]:
        """Return each upload as prototypes (K, d) on a client prototype's scale."""
        return [upload.rows for upload in uploads]

    def compress(self, learned: Prototypes) -> Prototypes:
        """Return the rows to broadcast from the learned prototypes (K, d)."""
        return learned

    def _fit(
        self, network: TrainablePrototypes, uploads: Sequence[Prototypes], margin: Tensor, offered: Tensor,
        device: torch.device, round_: Round, streams: Streams,
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
            context={"penalty": distance_penalty(margin, offered).to(device)},
            loss=contrastive_step,
            part_names=("contrastive",),
            data=TensorData(values, labels).to(device),
            plan=plan,
            num_classes=self.federation.num_classes,
            seed=0,
            epoch=contrastive_epoch,
        )

    def _network(self, state: State) -> TrainablePrototypes:
        with global_randomness(0):  # the meta device would draw nothing, but takes a second to load
            network = TrainablePrototypes(self.federation.num_classes, self.federation.proto_dim)
        network.load_state_dict({name: state[f"network.{name}"] for name in network.state_dict()})
        return network

    @staticmethod
    def _state(network: TrainablePrototypes, rows: Prototypes) -> State:
        weights = {f"network.{name}": value.detach().cpu().clone() for name, value in network.state_dict().items()}
        return {**weights, **rows._asdict()}


def build(hyper: FedTGPHyper, federation: FederationSpec) -> Algorithm:
    """Return FedTGP as published: prototypes in full."""
    width = federation.proto_dim
    server = TrainableServer(hyper, federation, width)
    return prototype_algorithm("fedtgp", PrototypeClient(hyper, federation), server, width=width)


SPEC = AlgorithmSpec("fedtgp", "FedTGP", FedTGPHyper, build)
