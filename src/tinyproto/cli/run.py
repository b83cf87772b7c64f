"""`tinyproto run` and `tinyproto resume`: progress while it goes, the table and the verdict at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from tinyproto import grid
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.loading import LoadingBar
from tinyproto.cli.progress import Progress
from tinyproto.cli.table import comparison_table
from tinyproto.cli.terminal import terminal
from tinyproto.config import Config, load_config
from tinyproto.errors import Interrupted
from tinyproto.experiment import Experiment
from tinyproto.report.compare import compare
from tinyproto.report.verdict import verdict
from tinyproto.report.words import counted
from tinyproto.tracking.run_folder import RunFolder


def run_config(path: Path, overrides: Sequence[str], runs: Path, overwrite: bool) -> None:
    """A config in, a run folder out."""
    experiment = _experiment(load_config(path, overrides))
    folder = runs / experiment.config.model.name
    _watch(experiment, folder, lambda progress: grid.run(experiment, runs, overwrite=overwrite, observer=progress))


def resume_run(folder: Path) -> None:
    """A run folder in, the same run folder out, finished."""
    experiment = _experiment(load_config(RunFolder.open(folder).path / "config.yaml"))
    _watch(experiment, folder, lambda progress: grid.resume(experiment, folder, observer=progress))


def _experiment(config: Config) -> Experiment:
    with LoadingBar(terminal()) as progress:
        return Experiment(config, progress=progress)


def _watch(experiment: Experiment, folder: Path, play: Callable[[Progress], Path]) -> None:
    console, config = terminal(), experiment.config
    _announce(console, experiment)
    with StopOnInterrupt() as stop:
        progress = Progress(console, len(experiment.cells), config.model.train.rounds, config.model.evaluate.rule, stop)
        try:
            with progress:
                play(progress)
        except KeyboardInterrupt:
            raise Interrupted(f"go on with: tinyproto resume {folder}") from None
    _conclude(console, config, folder)


def _announce(console: Console, experiment: Experiment) -> None:
    model = experiment.config.model
    counts = {
        "algorithm": len(experiment.config.algorithms), "seed": len(model.seeds), "round": model.train.rounds,
        "client": experiment.data.num_clients, "network": len(model.models),
    }  # fmt: skip
    console.print(
        f"{model.name}: {', '.join(counted(count, thing) for thing, count in counts.items())} on "
        f"{experiment.images.name}; preset {model.preset}, device {experiment.device}"
    )


def _conclude(console: Console, config: Config, folder: Path) -> None:
    """The table, the verdict, and where everything is."""
    results = RunFolder(folder).read_results()
    titles = {entry.label: entry.title for entry in config.algorithms}
    comparison = compare(results, titles, config.model.evaluate.rule, config.model.evaluate.statistic)
    console.print()
    console.print(comparison_table(comparison, console))
    for sentence in verdict(comparison):
        console.print(f"• {sentence}", markup=False)
    console.print(f"\nWritten to {folder}", soft_wrap=True, markup=False)
