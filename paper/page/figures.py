"""The paper's figures in its own form, from records: each also as accuracy against the bytes that bought it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paper import figure1
from paper.experiments import CPS_DIMS, DATASETS, DIM, NEURON_METHODS
from paper.page.curves import Curve, Point, accuracies, counts, draw, short_number, sizes, widths
from paper.page.formula import formula_at
from paper.page.records import Outcome, Records
from paper.page.tables import two_digits
from paper.printed import DATASET_NAMES, Address, ablation, printed_tables
from tinyproto.algorithms import ALGORITHMS
from tinyproto.report.figures import Figure
from tinyproto.report.words import counted, size

BYTES = "payload bytes a round, up and down"
NEURON_STEMS = {100: "neurons_100", DIM: "table1_cifar100", 1000: "neurons_1000"}
INKS = {name: f"c{index}" for index, name in enumerate(ALGORITHMS)}
PRINTED = {row.address: row.accuracy for table in printed_tables() for row in table.rows}


@dataclass(frozen=True)
class Drawn:
    """A figure of the paper: what could be drawn of it, or why nothing could."""

    title: str
    figures: Sequence[Figure]
    missing: str = ""  # in words, where no cell of it was run


@dataclass(frozen=True)
class Kind:
    """The cells of one curve by their width: s, or d."""

    name: str
    ink: str
    cells: Mapping[int, Address]
    outcomes: Mapping[int, Outcome]  # of those that were run
    level: bool = False  # one cell, whose width is all of d

    def by_width(self) -> Curve:
        """Accuracy against width, with what the paper prints."""
        printed = [(float(width), PRINTED[cell]) for width, cell in self.cells.items() if cell in PRINTED]
        points = [Point(width, y, f"{width}: {words}") for width, y, words, _ in self._told()]
        return Curve(self.name, self.ink, points, printed, self.level)

    def by_bytes(self) -> Curve:
        """Accuracy against payload bytes."""
        points = [
            Point(found.row.payload_bytes, y, f"{words} for {size(found.row.payload_bytes)}")
            for _, y, words, found in self._told()
        ]
        return Curve(self.name, self.ink, points)

    def costs(self) -> Curve:
        """Parameters by the paper's formula against width: of every cell, if one of them was run."""
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


def paper_figures(records: Records) -> list[Drawn]:
    """In the paper's order."""
    return [
        Drawn("Figure 1: parameters against FedAvg", [_figure1()]),
        _neurons(records),
        *(_ablation(records, dataset) for dataset in DATASETS),
        *(_compression(records, dataset) for dataset in ("cifar10", "cifar100")),
    ]


def _figure1() -> Figure:
    def curve(name: str, ink: str, parameters: Callable[[int], int]) -> Curve:
        values = [(classes, parameters(classes)) for classes in figure1.CLASSES]
        return Curve(name, ink, [Point(k, count, f"{short_number(count)} for {k} classes") for k, count in values])

    def prototypes(dim: int) -> Callable[[int], int]:
        return lambda classes: figure1.prototype_parameters(classes, dim)

    inks = (INKS[name] for name in ("tinyproto_ft", "tinyproto_fp", "fedproto", "lg_fedavg"))
    curves = [
        curve("FedAvg, ShuffleNetV2 ×0.5", INKS["fedavg"], figure1.fedavg_parameters),
        *(curve(f"prototypes, d={dim}", ink, prototypes(dim)) for dim, ink in zip(figure1.DIMS, inks, strict=True)),
    ]
    values = [point.y for one in curves for point in one.points]
    return draw(
        "paper-figure1", "Parameters a client sends a round, by number of classes",
        "By formula, nothing is run: FedAvg sends a whole ShuffleNetV2 ×0.5, the network whose 1.36 M parameters over "
        "1 000 classes the paper speaks of; prototype methods send K·d.",
        curves, counts(figure1.CLASSES, "classes"), counts(values, "Parameters", upright=True),
    )  # fmt: skip


def _neurons(records: Records) -> Drawn:
    title = "Number of neurons, CIFAR-100"
    kinds = [
        _kind(records, ALGORITHMS[name].title, INKS[name], {d: Address(stem, name) for d, stem in NEURON_STEMS.items()})
        for name in NEURON_METHODS
    ]
    run = [kind for kind in kinds if kind.outcomes]
    if not run:
        return Drawn(title, [], f"no cell of it is among the runs ({', '.join(NEURON_STEMS.values())})")
    x = widths([float(dim) for dim in NEURON_STEMS], "d, neurons of the decision layer")
    curves, costs = [kind.by_width() for kind in run], [kind.costs() for kind in run]
    values = [point.y for curve in costs for point in curve.points]
    caption = "TinyProto with s = d/10 and scaling. The paper prints numbers for d=500 alone."
    parameters = draw(
        "paper-neurons-parameters", f"{title}: parameters",
        "By the paper's formula, at every d whether run or not. Of two methods that send as much, the second is dashed "
        "over the first; dots at one place are rings around each other.",
        costs, x, counts(values, "Parameters a round", upright=True),
    )  # fmt: skip
    accuracy = draw("paper-neurons", f"{title}: accuracy", caption, curves, x, accuracies(curves))
    return Drawn(title, [accuracy, parameters, _over_bytes("paper-neurons-bytes", title, run)])


def _ablation(records: Records, dataset: str) -> Drawn:
    title = f"Ablation of TinyProto-FT, {DATASET_NAMES[dataset]}"
    unscaled, scaled = ({s: ablation(dataset, "tinyproto_ft", s, on) for s in CPS_DIMS} for on in (False, True))
    kinds = [
        _kind(records, "CPS and scaling", "c8", scaled),
        _kind(records, "CPS, not scaled", "c6", unscaled),
        _kind(records, "scaling, no CPS", "c1", {DIM: ablation(dataset, "tinyproto_ft", None, True)}, level=True),
        _kind(records, "FedTGP", "c4", {DIM: Address(f"table1_{dataset}", "fedtgp")}, level=True),
    ]
    return _by_width(title, f"paper-ablation-{dataset}", kinds, "s, CPS dimensions")


def _compression(records: Records, dataset: str) -> Drawn:
    title = f"CPS against a smaller layer, {DATASET_NAMES[dataset]}"
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


def _by_width(title: str, slug: str, kinds: Sequence[Kind], x_name: str) -> Drawn:
    if not any(kind.outcomes for kind in kinds):
        stems = dict.fromkeys(cell.stem for kind in kinds for cell in kind.cells.values())
        return Drawn(title, [], f"no cell of it is among the runs ({', '.join(stems)})")
    curves = [kind.by_width() for kind in kinds]
    caption = "Lines with dots: ours, mean over seeds; dashed: ours without CPS. Dotted: as printed."
    x = widths([float(width) for width in CPS_DIMS], x_name)
    accuracy = draw(slug, f"{title}: accuracy", caption, curves, x, accuracies(curves))
    return Drawn(title, [accuracy, _over_bytes(f"{slug}-bytes", title, kinds)])


def _over_bytes(slug: str, title: str, kinds: Sequence[Kind]) -> Figure:
    curves = [curve for kind in kinds if (curve := kind.by_bytes()).points]
    caption = "The same cells at the bytes that their messages took, values alone."
    return draw(slug, f"{title}: accuracy against bytes", caption, curves, sizes(curves, BYTES), accuracies(curves))


def _accuracy_words(outcome: Outcome) -> str:
    assert outcome.accuracy is not None
    early = f" after {counted(outcome.rounds, 'round')}" if outcome.shortened else ""
    return f"{two_digits(outcome.accuracy.mean)} %{early}"
