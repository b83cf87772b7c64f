"""`tinyproto run`: a config in, progress while it goes, the table and the verdict at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tinyproto.cli.progress import Progress
from tinyproto.cli.table import comparison_table
from tinyproto.cli.terminal import terminal
from tinyproto.config import load_config
from tinyproto.errors import Interrupted
from tinyproto.experiment import Experiment
from tinyproto.report.compare import compare
from tinyproto.report.verdict import verdict
from tinyproto.report.words import counted


def run_config(path: Path, overrides: Sequence[str], runs: Path, overwrite: bool) -> None:
    """Everything between the command's arguments and its last line."""
    console = terminal()
    config = load_config(path, overrides)
    experiment = Experiment(config)
    model = config.model
    counts = {
        "algorithm": len(config.algorithms), "seed": len(model.seeds), "round": model.train.rounds,
        "client": experiment.data.num_clients, "network": len(model.models),
    }  # fmt: skip
    console.print(
        f"{model.name}: {', '.join(counted(count, thing) for thing, count in counts.items())} on "
        f"{experiment.images.name}; preset {model.preset}, device {experiment.device}"
    )
    with Progress(console, len(experiment.cells), model.train.rounds, model.evaluate.rule) as progress:
        try:
            folder = experiment.run(runs, overwrite=overwrite, observer=progress)
        except KeyboardInterrupt:
            raise Interrupted(f"what was recorded so far is in {runs / model.name}") from None
    results = json.loads((folder / "summary.json").read_text())["results"]
    titles = {entry.label: entry.title for entry in config.algorithms}
    comparison = compare(results, titles, model.evaluate.rule, model.evaluate.statistic)
    console.print()
    console.print(comparison_table(comparison, console))
    for sentence in verdict(comparison):
        console.print(f"• {sentence}", markup=False)
    console.print(f"\nWritten to {folder}", soft_wrap=True, markup=False)
