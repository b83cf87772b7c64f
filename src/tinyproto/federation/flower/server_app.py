"""Flower's entry point on the coordinator: `flwr run` starts it once for a federation.

The run config's `folder` is the run folder, in which `serve.json` says what to do; `tinyproto serve` writes it. Without
`tinyproto serve`, the run config's `config` names a config file and `overrides` changes keys of it, as in
`train.rounds=3 seeds=[1]`; a folder in which a federation is under way goes on with it.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from tinyproto.config import load_config
from tinyproto.errors import TinyProtoError, one_line
from tinyproto.federation.coordinator import Coordinator
from tinyproto.federation.files import ServeFile
from tinyproto.federation.journal import Journal
from tinyproto.federation.terms import new_token
from tinyproto.tracking.run_folder import is_federation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the federation; what stops it is told in `progress.jsonl` before the process fails."""
    folder = Path(str(context.run_config["folder"]))
    try:
        if context.run_config.get("config"):
            _prepare(folder, Path(str(context.run_config["config"])), str(context.run_config.get("overrides", "")))
        Coordinator(folder, grid).run()
    except TinyProtoError as error:
        Journal(folder / "progress.jsonl").tell("failed", reason=str(error))
        raise
    except Exception as error:
        Journal(folder / "progress.jsonl").tell("failed", reason=one_line(error))
        raise


def _prepare(folder: Path, config: Path, overrides: str) -> None:
    """Have serve.json there: a new federation, or the one that is under way."""
    resolved = load_config(config, overrides.split()).resolved()
    under_way = is_federation(folder)
    token = ServeFile.read(folder).federation if under_way else new_token()
    folder.mkdir(parents=True, exist_ok=True)
    ServeFile(config=resolved, federation=token, resume=under_way).write(folder)
