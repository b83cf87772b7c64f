"""Fixtures for the whole suite."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from support import NUM_CLASSES, make_images
from support_cli import GoodRun, command, write_project
from tinyproto.core.task import Batch, TensorData
from tinyproto.data.dataset import FederatedData
from tinyproto.data.partition import Share

if TYPE_CHECKING:
    from support_real_mqtt import RealMqtt, Start

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what a script starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else the commands under test would ignore it, too

# A slow or busy machine is no fault of the code under test.
settings.register_profile(
    "any machine", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip
settings.load_profile("any machine")
torch.set_num_threads(1)  # threads of several test processes would spend their time waiting for each other


@pytest.fixture
def quarters() -> FederatedData:
    """Five clients: two ordinary ones, one with a single class, one with one sample, one without a test part."""
    images = make_images(120)
    everything = np.arange(120)
    of_class_2 = everything[everything % NUM_CLASSES == 2]
    shares = [
        Share(train=everything[:30], test=everything[30:40]),
        Share(train=everything[40:60], test=everything[60:70]),
        Share(train=of_class_2[18:27], test=of_class_2[27:30]),
        Share(train=everything[77:78], test=everything[78:80]),
        Share(train=everything[80:97], test=everything[:0]),
    ]
    return FederatedData(images, shares)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run both trainers in float64, so that a difference is a mistake and not amplified rounding."""

    def batch(data: TensorData, indices: Tensor | slice) -> Batch:
        return Batch(data._stored(indices).double() * data.scale + data.shift, data.labels[indices])

    monkeypatch.setattr(TensorData, "batch", batch)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder: a config and a module with networks."""
    return write_project(tmp_path / "project")


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> GoodRun:
    cwd = write_project(tmp_path_factory.mktemp("good"))
    done = command("run", "trial.yaml", cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return GoodRun(cwd, cwd / "runs" / "trial", done.stdout)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Prepare a federation of real processes over MQTT; what it starts ends with the test."""
    from support_real_mqtt import RealMqtt

    made: list[RealMqtt] = []

    def prepare(**more: Any) -> RealMqtt:
        made.append(RealMqtt(tmp_path, **more))
        return made[-1]

    yield prepare
    for federation in made:
        federation.clean_up()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The federation of real processes waits more than it works; it begins first, beside all others."""
    items.sort(key=lambda item: "test_real_federation.py" not in item.nodeid)
