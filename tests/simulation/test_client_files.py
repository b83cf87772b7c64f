"""States on disk: whole or not at all, in a folder that does not stay."""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tinyproto.errors import ClientStateError
from tinyproto.storage.client_files import ClientFiles
from tinyproto.storage.tensor_files import digest, disk_words

PARTS = {"model": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "received": {}}
DIGESTS = {part: digest(tensors) for part, tensors in PARTS.items()}


def test_what_is_put_comes_back_and_no_partial_name_is_left(tmp_path: Path) -> None:
    files = ClientFiles(tmp_path / "clients")
    stored = files.put(7, PARTS, DIGESTS)
    assert [path.suffix for path in (tmp_path / "clients").iterdir()] == [".safetensors"]
    found = files.get(7, stored)
    assert digest(found["model"]) == DIGESTS["model"]
    assert found["received"] == {}
    assert files.bytes_read == files.bytes_written > 0


def test_a_digest_tells_values_names_shapes_and_types_apart_but_not_orders() -> None:
    base = {"a": torch.zeros(4), "b": torch.ones(2)}
    others = [
        {"a": torch.zeros(4), "c": torch.ones(2)},
        {"a": torch.zeros(2, 2), "b": torch.ones(2)},
        {"a": torch.zeros(4, dtype=torch.int32), "b": torch.ones(2)},
        {"a": torch.zeros(4), "b": torch.tensor([1.0, 1.0000001])},
        {"a": torch.zeros(4)},
        {},
    ]
    assert len({digest(tensors) for tensors in (base, *others)}) == 7
    assert digest(dict(reversed(base.items()))) == digest(base)


def test_a_temporary_folder_goes_with_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = ClientFiles()
    assert list(tmp_path.iterdir()) == []
    files.put(0, PARTS, DIGESTS)
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 1
    del files
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_sentence_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "clients").write_text("in the way")
    with pytest.raises(
        ClientStateError, match=r"cannot write the state of client 3 to .*clients: File exists; free some space there$"
    ):
        ClientFiles(tmp_path / "clients").put(3, PARTS, DIGESTS)


SCRIPT = """\
import tempfile
from pathlib import Path

import tinyproto as tp
import tinyproto.experiment


def stop(*_, **__):
    assert list(Path(tempfile.gettempdir()).glob("tinyproto-clients-*/*.safetensors"))
    raise KeyboardInterrupt


tinyproto.experiment.summarise_cell = stop
tp.simulate(num_clients=4, rounds=2, models=["small_cnn_c"], proto_dim=10, settings={"train": {"client_memory": "1B"}})
"""


def test_an_interrupt_leaves_no_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    variables = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in done.stderr
    assert list((tmp_path / "tmp").glob("tinyproto*")) == []


CONFIG = """
name: trial
models: [small_cnn_c]
partition: {num_clients: 4}
prototypes: {dim: 10, cps_dim: 2}
train: {rounds: 100000, client_memory: 1B}
algorithms: [fedproto]
"""


@pytest.mark.parametrize(
    "words",
    [
        'IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',  # safetensors before 0.6
        "I/O error: No space left on device (os error 28)",
    ],
)
def test_of_a_full_disk_only_the_system_s_words_are_told(words: str) -> None:
    assert disk_words(Exception(f"Error while serializing: {words}")) == "No space left on device"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("overrides", "advice"),
    [((), ", or raise train.client_memory"), (("train.client_memory=auto", "checkpoint.every_seconds=0"), "")],
    ids=["sent away", "for a checkpoint"],
)
def test_a_full_disk_ends_a_run_with_one_sentence_and_leaves_no_half_state(
    tmp_path: Path, workers: int, overrides: tuple[str, ...], advice: str
) -> None:
    config = tmp_path / "trial.yaml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "tinyproto.cli.main", "run", str(config), "--runs", str(tmp_path / "runs")]

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

    done = subprocess.run(
        [*command, f"train.workers={workers}", *overrides], capture_output=True, text=True, preexec_fn=limit,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    said = (
        r"tinyproto: error: 1 cell failed \(FedProto, seed 0: cannot write the state of client \d to \S+/clients: "
        r"File too large; free some space there"
    )
    assert re.search(rf"{said}{re.escape(advice)}\); `tinyproto resume \S+` tries again$", done.stderr.rstrip())
    assert not (tmp_path / "runs" / "trial" / "clients").exists()
