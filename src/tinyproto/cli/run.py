"""`tinyproto run` and `tinyproto resume`: progress during the run, then the table, the verdict and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tinyproto import grid
from tinyproto.cli.interrupt import ENDING, StopOnInterrupt
from tinyproto.cli.live import live_page
from tinyproto.cli.progress import Expected, LoadingBar, Progress
from tinyproto.cli.report import print_comparison, write_report
from tinyproto.cli.terminal import Output
from tinyproto.config import Config, load_config
from tinyproto.errors import CellsFailed, Interrupted, RunFolderError
from tinyproto.experiment import Experiment
from tinyproto.report.compare import compare
from tinyproto.report.verdict import verdict
from tinyproto.report.words import counted
from tinyproto.tracking.run_folder import RunFolder, how_to_resume, is_federation


def run_config(
    path: Path, overrides: Sequence[str], runs: Path, overwrite: bool, output: Output, *, live: bool = False
) -> None:
    """Run a config into a new run folder."""
    experiment = _experiment(load_config(path, overrides), output)
    folder = runs / experiment.config.model.name
    with live_page(live, experiment.config, folder, output, new=True):
        _watch(
            experiment, folder, output,
            lambda progress: grid.run(experiment, runs, overwrite=overwrite, observer=progress),
        )  # fmt: skip


def resume_run(folder: Path, output: Output, *, live: bool = False) -> None:
    """Resume the run in a run folder."""
    RunFolder.open(folder)
    if is_federation(folder):
        raise RunFolderError(
            f"{folder} holds a real federation, which `tinyproto resume` cannot continue; use: {how_to_resume(folder)}"
        )
    experiment = _experiment(load_config(folder / "config.yaml"), output)
    with live_page(live, experiment.config, folder, output, new=False):
        _watch(experiment, folder, output, lambda progress: grid.resume(experiment, folder, observer=progress))


def _experiment(config: Config, output: Output) -> Experiment:
    with LoadingBar(output.console) as progress:
        return Experiment(config, progress=progress)


def _watch(experiment: Experiment, folder: Path, output: Output, run: Callable[[Progress], Path]) -> None:
    config = experiment.config
    _announce(output, experiment)
    with StopOnInterrupt(*ENDING) as stop:
        expected = Expected(config.model.train.rounds, config.model.evaluate.rule)
        try:
            try:
                with Progress(output, [expected] * len(experiment.cells), lambda: stop.wanted) as progress:
                    run(progress)
            except CellsFailed as failure:
                with suppress(RunFolderError):  # such as the same full disk
                    conclude(output, config, folder, failure)
                raise
            conclude(output, config, folder)
        except KeyboardInterrupt:
            raise Interrupted(f"resume with: tinyproto resume {folder}", stop.status) from None


def _announce(output: Output, experiment: Experiment) -> None:
    model = experiment.config.model
    counts = {
        "algorithm": len(experiment.config.algorithms), "seed": len(model.seeds), "round": model.train.rounds,
        "client": experiment.data.num_clients, "network": len(model.models),
    }  # fmt: skip
    output.console.print(
        f"{model.name}: {', '.join(counted(count, thing) for thing, count in counts.items())} on "
        f"{experiment.images.name}; preset {model.preset}, device {experiment.device}"
    )
    if model.data.root is not None and model.data.name in ("digits", "wine", "signals"):
        output.say(f"data.root ({model.data.root}) is ignored: {model.data.name} needs no files")
    if output.verbose:
        sizes = experiment.data.train_counts.sum(1)
        at_once = experiment.cells_at_once
        cells = f"up to {at_once} cells at once, each with " if at_once > 1 else ""
        output.say(
            f"{cells}{counted(experiment.workers, 'worker')} of one thread; "
            f"networks {', '.join(map(str, model.models))}; "
            f"{int(sizes.min())} to {int(sizes.max())} training samples per client"
        )


def conclude(output: Output, config: Config, folder: Path, failure: CellsFailed | None = None) -> None:
    """Show the table and the verdict of the completed cells, and write the report; with --json print the result."""
    results = RunFolder(folder).read_results()
    titles = {entry.label: entry.title for entry in config.algorithms}
    evaluate = config.model.evaluate
    comparison = compare(results, titles, evaluate.rule, evaluate.statistic, evaluate.every)
    sentences = verdict(comparison) if results else []
    report = None
    if results:
        output.console.print()
        print_comparison(output.console, comparison, sentences)
        report = str(write_report([folder], folder / "report.html"))
        output.say(f"\nResults are in {folder}; open {report}")
    run = {"run": str(folder), "report": report, "verdict": sentences}
    output.result({**run, "failed": failure.failed if failure else [], **comparison.plain()})
