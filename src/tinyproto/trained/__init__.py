"""Use a trained network: load a client from a run or a device, classify with it, and export it to one file."""

from __future__ import annotations

from tinyproto.trained.client import Prediction, TrainedClient
from tinyproto.trained.find import load_client

__all__ = ["Prediction", "TrainedClient", "load_client"]
