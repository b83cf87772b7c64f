"""How each package is told a cell's rounds. All of them write files in the run folder and send nothing."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from tinyproto.engine.measure import RULES
from tinyproto.tracking.trackers import TrackedCell, Tracker

METRICS = [f"summary/accuracy/{statistic}/{rule}" for statistic in ("best", "last", "last10") for rule in RULES]
"""The values that TensorBoard shows beside hyper-parameters."""

MOST_AT_ONCE = 100
"""The number of hyper-parameters that MLflow takes in one call."""


class TensorBoard:
    """An event file in `tensorboard/CELL`."""

    def __init__(self, cell: TrackedCell) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        folder = cell.folder / cell.name
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder))
        begin, settings, self._end = hparams(dict(cell.settings), dict.fromkeys(METRICS, 0.0))
        for part in (begin, settings):
            self._writer.file_writer.add_summary(part)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, completed: bool) -> None:
        """Close the event file."""
        if completed:
            self._writer.file_writer.add_summary(self._end)
        self._writer.close()


class WandbLike:
    """A run of Weights & Biases, or of trackio, which has the same functions."""

    def __init__(self, run: Any, finish: Callable[[], None]) -> None:
        self._run = run
        self._finish = finish

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add values."""
        self._run.log(dict(values), step=step)

    def close(self, completed: bool) -> None:  # noqa: ARG002
        """Finish the run."""
        with _silent():
            self._finish()


def open_wandb(cell: TrackedCell) -> Tracker:
    """Start an offline run in `wandb/CELL`; a cell that resumes keeps the id under which it may have been uploaded."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    folder = cell.folder / cell.name
    before = next((path.name.rpartition("-")[2] for path in folder.glob("wandb/offline-run-*")), None)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with _silent():
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True, save_code=False)
        run = wandb.init(
            project=cell.run, name=cell.name, config=dict(cell.settings), dir=str(folder), id=before, mode="offline",
            reinit="create_new", settings=settings,
        )  # fmt: skip
    return WandbLike(run, run.finish)


def open_trackio(cell: TrackedCell) -> Tracker:
    """Start a run in the project's database in `trackio`, in place of the cell's earlier one."""
    os.environ["TRACKIO_DIR"] = str(cell.folder)  # read when the package is imported
    import trackio
    from trackio.utils import TRACKIO_DIR

    if Path(TRACKIO_DIR).resolve() != cell.folder.resolve():
        raise RuntimeError(f"in this process it writes to {TRACKIO_DIR}; start another Python process")
    with _silent():
        if any(cell.folder.glob("*.db")):
            for run in trackio.Api().runs(cell.run):
                if run.name == cell.name:
                    run.delete()
        run = trackio.init(
            project=cell.run, name=cell.name, config=dict(cell.settings), embed=False, auto_log_gpu=False,
            auto_log_cpu=False,
        )  # fmt: skip
    return WandbLike(run, trackio.finish)  # not the run's, which leaves it to be finished again at exit


class MLflow:
    """A run in the database `mlflow/mlflow.db`, in place of the cell's earlier one."""

    def __init__(self, cell: TrackedCell) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._metric = Metric
        folder = cell.folder.resolve()
        with FileLock(folder / ".lock"):  # cells that run at once make one database and one experiment
            self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
            known = self._client.get_experiment_by_name(cell.run)
            experiment = (
                self._client.create_experiment(cell.run, artifact_location=(folder / "artifacts").as_uri())
                if known is None
                else known.experiment_id
            )
        for earlier in self._client.search_runs([experiment], f"attributes.run_name = '{cell.name}'"):
            self._client.delete_run(earlier.info.run_id)
        self._run = self._client.create_run(experiment, run_name=cell.name).info.run_id
        params = [Param(key, str(value)) for key, value in cell.settings.items()]
        for start in range(0, len(params), MOST_AT_ONCE):
            self._client.log_batch(self._run, params=params[start : start + MOST_AT_ONCE])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add metrics."""
        now = int(1000 * time.time())
        self._client.log_batch(self._run, [self._metric(name, value, now, step) for name, value in values.items()])

    def close(self, completed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FINISHED" if completed else "KILLED")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what a package prints off the terminal, which shows progress."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


OPEN: Mapping[str, Callable[[TrackedCell], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": open_wandb,
    "trackio": open_trackio,
    "mlflow": MLflow,
}
