"""`serve.json` in the run folder: what the coordinator is to do, and how it was started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinyproto.config.schema import Section
from tinyproto.flower.files import read_section
from tinyproto.flower.terms import Token
from tinyproto.tracking.run_folder import SERVE_FILE, write_whole


class ServeFile(Section):
    """What `tinyproto serve` tells the ServerApp, and itself when it goes on."""

    config: dict[str, Any]  # resolved
    federation: Token
    resume: bool = False
    keys: dict[str, str] | None = None  # by client id: its public key, in hexadecimal, as Flower tells it
    listen: str | None = None  # where clients reach it
    key_folder: str | None = None  # where its own keys are

    @classmethod
    def read(cls, folder: Path) -> ServeFile:
        """Checked strictly."""
        return read_section(cls, folder / SERVE_FILE)

    def write(self, folder: Path) -> None:
        """Whole, or as it was."""
        write_whole(folder / SERVE_FILE, self.model_dump_json(indent=1, exclude_none=True))

    def public_keys(self) -> dict[int, bytes]:
        """By client id."""
        return {int(client): bytes.fromhex(key) for client, key in (self.keys or {}).items()}
