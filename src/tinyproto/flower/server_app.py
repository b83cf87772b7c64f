"""Flower's entry point on the coordinator: `flwr run` starts it once for a federation.

The run config's `folder` is the run folder, in which `serve.json` says what to do.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from tinyproto.errors import TinyProtoError
from tinyproto.flower.coordinator import Coordinator
from tinyproto.flower.journal import Journal

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the federation; what stops it is told in `progress.jsonl` before the process fails."""
    folder = Path(str(context.run_config["folder"]))
    try:
        Coordinator(folder, grid).run()
    except TinyProtoError as error:
        Journal(folder / "progress.jsonl").tell("failed", reason=str(error))
        raise
