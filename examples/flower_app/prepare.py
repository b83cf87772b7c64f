"""Make folders for the clients of a Flower simulation, each with its share of a config's dataset and a network.

Run:  python examples/flower_app/prepare.py configs/federation.yaml clients
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tinyproto.config import load_config
from tinyproto.federation.terms import members


def prepare(config_file: Path, folder: Path) -> None:
    """Write `client-N/join.json` for each client, as `tinyproto join` would."""
    config = load_config(config_file, [])
    model = config.model
    share = {"data": model.data.model_dump(mode="json"), "partition": model.partition.model_dump(mode="json")}
    for client in range(members(config)):
        place = folder / f"client-{client}"
        place.mkdir(parents=True, exist_ok=True)
        network = model.models[client % len(model.models)]
        (place / "join.json").write_text(json.dumps({"data": {"share": share}, "model": network, "device": "cpu"}))


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
