"""The paper's figures from records; each is also drawn as accuracy over the bytes of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from torch import nn

from paper.experiments import CPS_DIMS, DATASETS, DIM, NEURON_METHODS
from paper.page.curves import Curve, Point, accuracies, counts, draw, short_number, sizes, widths
from paper.page.outcomes import Outcome, Records, paper_cell
from paper.page.tables import two_digits
from paper.printed import DATASET_NAMES, Address, ablation, printed_numbers
from tinyproto.algorithms import ALGORITHMS, FederationSpec
from tinyproto.config import parse_config
from tinyproto.models.count import count_parameters
from tinyproto.models.shufflenet_v2 import WIDTH, X0_5, ShuffleNetV2
from tinyproto.report.figures import Figure
from tinyproto.report.words import counted, size

BYTES = "payload bytes a round, up and down"
NEURON_STEMS = {100: "neurons_100", DIM: "table1_cifar100", 1000: "neurons_1000"}
METHODS = (
    "local", "fedavg", "lg_fedavg", "fml", "fedkd", "feddistill", "fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft",
)  # fmt: skip
"""The paper's methods."""

INKS = {name: f"c{index}" for index, name in enumerate(METHODS)}
FIGURE1_CLASSES = (10, 20, 50, 100, 200, 500, 1000)
FIGURE1_DIMS = (50, 100, 500, 1000)
"""Prototype dimensions of Figure 1; 50 of 500 is also what CPS sends."""


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, or the reason why it cannot be drawn."""

    title: str
    figures: Sequence[Figure]
    missing: str = ""  # the reason, if no cell of it was run


@dataclass(frozen=True)
class Kind:
    """The cells of one curve by width: s or d."""

    name: str
    ink: str
    cells: Mapping[int, Address]
    outcomes: Mapping[int, Outcome]  # of the cells that were run
    level: bool = False  # one cell, of width d

    def by_width(self) -> Curve:
        """Return accuracy by width, with the printed values."""
        known = printed_numbers()
        printed = [(float(width), known[cell].accuracy) for width, cell in self.cells.items() if cell in known]
        points = [Point(width, y, f"{width}: {words}") for width, y, words, _ in self._told()]
        return Curve(self.name, self.ink, points, printed, self.level)

    def by_bytes(self) -> Curve:
        """Return accuracy by payload bytes."""
        points = [
            Point(found.row.payload_bytes, y, f"{words} for {size(found.row.payload_bytes)}")
            for _, y, words, found in self._told()
        ]
        return Curve(self.name, self.ink, points)

    def costs(self) -> Curve:
        """Return parameters by the paper's formula at every width, if one of the cells was run."""
        first = next(iter(self.outcomes.values()))
        found = [(w, formula_at(cell, self.outcomes.get(w, first))) for w, cell in self.cells.items()]
        points = [Point(w, cost, f"{w}: {short_number(cost)}") for w, cost in found if cost is not None]
        return Curve(self.name, self.ink, points)

    def _told(self) -> list[tuple[int, float, str, Outcome]]:
        return [
            (width, found.accuracy.mean, _accuracy_words(found), found)
            for width, found in self.outcomes.items()
            if found.accuracy is not None
        ]


def paper_figures(records: Records) -> list[PaperFigure]:
    """Return all figures in the paper's order."""
    return [
        PaperFigure("Figure 1: parameters compared with FedAvg", [_figure1()]),
        _neurons(records),
        *(_ablation(records, dataset) for dataset in DATASETS),
        *(_compression(records, dataset) for dataset in ("cifar10", "cifar100")),
    ]


def _figure1() -> Figure:
    def curve(name: str, ink: str, parameters: Callable[[int], int]) -> Curve:
        values = [(classes, parameters(classes)) for classes in FIGURE1_CLASSES]
        return Curve(name, ink, [Point(k, count, f"{short_number(count)} for {k} classes") for k, count in values])

    def prototypes(dim: int) -> Callable[[int], int]:
        return lambda classes: prototype_parameters(classes, dim)

    inks = (INKS[name] for name in ("tinyproto_ft", "tinyproto_fp", "fedproto", "lg_fedavg"))
    curves = [
        curve("FedAvg, ShuffleNetV2 ×0.5", INKS["fedavg"], fedavg_parameters),
        *(curve(f"prototypes, d={dim}", ink, prototypes(dim)) for dim, ink in zip(FIGURE1_DIMS, inks, strict=True)),
    ]
    values = [point.y for one in curves for point in one.points]
    return draw(
        "paper-figure1", "Parameters a client sends a round, by number of classes",
        "Computed, not run: FedAvg sends a whole ShuffleNetV2 ×0.5, which has the paper's 1.36 M parameters with 1 000 "
        "classes; prototype methods send K·d.",
        curves, counts(FIGURE1_CLASSES, "classes"), counts(values, "Parameters", upright=True),
    )  # fmt: skip


def _neurons(records: Records) -> PaperFigure:
    title = "Number of neurons, CIFAR-100"
    kinds = [
        _kind(records, ALGORITHMS[name].title, INKS[name], {d: Address(stem, name) for d, stem in NEURON_STEMS.items()})
        for name in NEURON_METHODS
    ]
    run = [kind for kind in kinds if kind.outcomes]
    if not run:
        return PaperFigure(title, [], f"none of its cells is among the runs ({', '.join(NEURON_STEMS.values())})")
    x = widths([float(dim) for dim in NEURON_STEMS], "d, neurons of the decision layer")
    curves, costs = [kind.by_width() for kind in run], [kind.costs() for kind in run]
    values = [point.y for curve in costs for point in curve.points]
    caption = "TinyProto with s = d/10 and scaling. The paper prints numbers only for d=500."
    parameters = draw(
        "paper-neurons-parameters", f"{title}: parameters",
        "By the paper's formula, at every d. If two methods send the same amount, the second is dashed over the "
        "first; dots at the same place are drawn as rings.",
        costs, x, counts(values, "Parameters a round", upright=True),
    )  # fmt: skip
    accuracy = draw("paper-neurons", f"{title}: accuracy", caption, curves, x, accuracies(curves))
    return PaperFigure(title, [accuracy, parameters, _over_bytes("paper-neurons-bytes", title, run)])


def _ablation(records: Records, dataset: str) -> PaperFigure:
    title = f"Ablation of TinyProto-FT, {DATASET_NAMES[dataset]}"
    unscaled, scaled = ({s: ablation(dataset, "tinyproto_ft", s, on) for s in CPS_DIMS} for on in (False, True))
    kinds = [
        _kind(records, "CPS and scaling", "c8", scaled),
        _kind(records, "CPS, not scaled", "c6", unscaled),
        _kind(records, "scaling, no CPS", "c1", {DIM: ablation(dataset, "tinyproto_ft", None, True)}, level=True),
        _kind(records, "FedTGP", "c4", {DIM: Address(f"table1_{dataset}", "fedtgp")}, level=True),
    ]
    return _by_width(title, f"paper-ablation-{dataset}", kinds, "s, CPS dimensions")


def _compression(records: Records, dataset: str) -> PaperFigure:
    title = f"CPS compared with a smaller layer, {DATASET_NAMES[dataset]}"
    unscaled, scaled = ({s: ablation(dataset, "tinyproto_fp", s, on) for s in CPS_DIMS} for on in (False, True))
    smaller = {dim: Address(f"compression_{dataset}_{dim}", "fedproto") for dim in CPS_DIMS}
    kinds = [
        _kind(records, "TinyProto-FP, CPS and scaling", "c8", scaled),
        _kind(records, "TinyProto-FP, CPS, not scaled", "c6", unscaled),
        _kind(records, "FedProto with only d neurons", "c4", smaller),
    ]
    return _by_width(title, f"paper-compression-{dataset}", kinds, "s or d, values sent of each class")


def _kind(records: Records, name: str, ink: str, cells: Mapping[int, Address], *, level: bool = False) -> Kind:
    found = {width: outcome for width, cell in cells.items() if (outcome := records.find(cell)) is not None}
    return Kind(name, ink, cells, found, level)


def _by_width(title: str, slug: str, kinds: Sequence[Kind], x_name: str) -> PaperFigure:
    if not any(kind.outcomes for kind in kinds):
        stems = dict.fromkeys(cell.stem for kind in kinds for cell in kind.cells.values())
        return PaperFigure(title, [], f"none of its cells is among the runs ({', '.join(stems)})")
    curves = [kind.by_width() for kind in kinds]
    caption = "Lines with dots: ours, mean over seeds; dashed: ours without CPS. Dotted: the paper's values."
    x = widths([float(width) for width in CPS_DIMS], x_name)
    accuracy = draw(slug, f"{title}: accuracy", caption, curves, x, accuracies(curves))
    return PaperFigure(title, [accuracy, _over_bytes(f"{slug}-bytes", title, kinds)])


def _over_bytes(slug: str, title: str, kinds: Sequence[Kind]) -> Figure:
    curves = [curve for kind in kinds if (curve := kind.by_bytes()).points]
    caption = "The same cells by the bytes of their messages, values only."
    return draw(slug, f"{title}: accuracy by bytes", caption, curves, sizes(curves, BYTES), accuracies(curves))


def _accuracy_words(outcome: Outcome) -> str:
    assert outcome.accuracy is not None
    early = f" after {counted(outcome.rounds, 'round')}" if outcome.shortened else ""
    return f"{two_digits(outcome.accuracy.mean)} %{early}"


@cache
def trunk_parameters() -> int:
    """Return the parameters of ShuffleNetV2 ×0.5 without its last layer; with 1 000 classes it has 1.36 M."""
    return count_parameters(ShuffleNetV2(X0_5, nn.Identity()))


def fedavg_parameters(num_classes: int) -> int:
    """Return the parameters of the whole network; its last layer has a weight per feature and a bias per class."""
    return trunk_parameters() + (WIDTH + 1) * num_classes


def prototype_parameters(num_classes: int, dim: int) -> int:
    """Return K · d: one prototype of every class."""
    return num_classes * dim


def formula_at(cell: Address, known: Outcome) -> float | None:
    """Return a cell's parameters a round by the paper's Table 2, from a known cell of its method and partition.

    Table 2 is a product: the classes that travel, counted in the known cell's record, times the values of one class.
    """
    total, of_known, of_cell = known.row.formula_parameters, _of_one_class(known.cell.address), _of_one_class(cell)
    return None if total is None or of_known is None or of_cell is None else total * of_cell / of_known


@cache
def _of_one_class(address: Address) -> int | None:
    """Return the cell's formula for one client and one class; None if the method has no formula."""
    cell = paper_cell(address)
    config = parse_config(cell.paper.values, cell.stem)
    entry = next(entry for entry in config.algorithms if entry.label == cell.label)
    dim = config.model.prototypes.dim
    smallest = nn.Linear(1, dim)  # the head after it is that of every network
    federation = FederationSpec(1, dim, config.model.train.learning_rate, (1,), networks=(smallest,))
    return entry.build(federation).table2_parameters([1])
