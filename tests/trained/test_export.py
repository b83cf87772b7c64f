"""An exported file takes raw inputs, answers as we do, and is not kept if it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support import make_patterns
from support_docs import ROOT
from tinyproto.core.prototypes import Prototypes
from tinyproto.errors import ConfigError, ModelError
from tinyproto.models import ModelShape, build_model
from tinyproto.trained import TrainedClient, export
from tinyproto.trained.export import FACTS_FILE, PACKAGES, export_client

K, D, SHAPE = 5, 20, (3, 32, 32)
NETWORKS = ("small_cnn_a", "small_cnn_b", "small_cnn_c", "small_cnn_d")
LARGE = ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0")
RULES = ("head", "local")  # the global prototypes go the way of the local ones


def make_client(network: str = "small_cnn_b") -> TrainedClient:
    """A client with drawn weights and prototypes; of its own prototypes two are missing."""
    drawn = torch.Generator().manual_seed(0)
    model = build_model(network, ModelShape(SHAPE, D, K), seed=0).eval()
    held = torch.tensor([True, False, True, True, False])
    prototypes = {
        "global": Prototypes(torch.rand(K, D, generator=drawn), torch.ones(K, dtype=torch.bool)),
        "local": Prototypes(torch.rand(K, D, generator=drawn) * held[:, None], held),
    }
    facts = {
        "client": 3, "algorithm": "fedproto", "label": "fedproto", "seed": 0, "network": network, "num_classes": K,
        "class_names": ["ant", "bee", "cät", "dog", "eel"], "input_shape": SHAPE, "dtype": "uint8",
        "scale": [0.01, 0.02, 0.03], "shift": [-1.0, -1.1, -1.2], "white": 255,
    }  # fmt: skip
    return TrainedClient(model, prototypes, facts, Path("client-3.safetensors"))


def need_onnx() -> None:
    for package in PACKAGES:
        pytest.importorskip(package, reason="the extra `export`")


@pytest.mark.parametrize("rule", RULES)
def test_a_torch_file_answers_batches_of_any_size_with_our_scores(tmp_path: Path, rule: str) -> None:
    client, file = make_client(), tmp_path / "client.pt2"
    done = export_client(client, file, "torch", rule)
    assert done.bytes == file.stat().st_size
    assert done.difference < 1e-5
    assert list(tmp_path.iterdir()) == [file]
    extra = {FACTS_FILE: ""}
    answers = torch.export.load(file, extra_files=extra).module()
    assert json.loads(json.loads(extra[FACTS_FILE])["classes"]) == ["ant", "bee", "cät", "dog", "eel"]
    for count in (1, 7):
        inputs = make_patterns(count, K, SHAPE, seed=count).inputs
        scores = answers(inputs)
        torch.testing.assert_close(scores, client.predict(inputs, rule).scores.float(), rtol=1e-4, atol=1e-5)


def check_onnx(folder: Path, network: str, rule: str) -> None:
    import onnxruntime

    client, file = make_client(network), folder / "client.onnx"
    assert export_client(client, file, "onnx", rule).difference < 1e-4
    assert list(folder.iterdir()) == [file]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == list(client.classes)
    assert (facts["rule"], facts["client"]) == (rule, "3")
    for count in (1, 7):
        inputs = make_patterns(count, K, SHAPE, seed=count).inputs
        (scores,) = session.run(None, {"inputs": inputs.numpy()})
        assert scores.dtype == np.float32
        torch.testing.assert_close(
            torch.from_numpy(scores), client.predict(inputs, rule).scores.float(), rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("rule", RULES)
def test_an_onnx_file_answers_batches_of_any_size_with_our_scores(tmp_path: Path, rule: str) -> None:
    need_onnx()
    check_onnx(tmp_path, "small_cnn_b", rule)


@pytest.mark.slow
@pytest.mark.parametrize("network", [*NETWORKS, *LARGE])
def test_every_network_can_be_exported(tmp_path: Path, network: str) -> None:
    need_onnx()
    check_onnx(tmp_path, network, "global")


def test_a_device_without_torch_classifies_with_the_file(tmp_path: Path) -> None:
    need_onnx()
    client, file, photo = make_client(), tmp_path / "client.onnx", tmp_path / "photo.png"
    export_client(client, file, "onnx", "global")
    Image.fromarray(make_patterns(1, K, (3, 50, 40)).inputs[0].permute(1, 2, 0).numpy()).save(photo)
    script = ROOT / "examples" / "classify_with_onnx.py"
    blocked = "import runpy, sys; sys.modules.update(torch=None, tinyproto=None); del sys.argv[0]; "
    words = [sys.executable, "-c", f"{blocked}runpy.run_path(sys.argv[0], run_name='__main__')"]
    done = subprocess.run([*words, script, file, photo], capture_output=True, text=True, timeout=60, check=False)
    found = client.predict(photo)
    score = f"{found.scores[0, found.labels[0]]:.3g}"
    assert f"photo.png: {found.classes[0]}, global score {score}, " in done.stdout, done.stderr


def test_a_file_that_answers_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_read_torch", lambda file: lambda inputs: torch.zeros(len(inputs), K))
    (tmp_path / "client.pt2").write_text("before")
    with pytest.raises(ModelError, match="gives other scores than the network; it was not kept"):
        export_client(make_client(), tmp_path / "client.pt2", "torch")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("client.pt2", "before")]


class Choosy(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.flatten(1)[:, :D] if float(inputs.sum()) > 0 else inputs.flatten(1)[:, D : 2 * D]


def test_what_cannot_be_exported_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client()
    with pytest.raises(ConfigError, match="unknown format 'onx', did you mean 'onnx'"):
        export_client(client, tmp_path / "x", "onx")
    with pytest.raises(ConfigError, match="unknown rule 'all'"):
        export_client(client, tmp_path / "x", "torch", "all")
    for place in (tmp_path / "none", Path(__file__)):
        with pytest.raises(ConfigError, match=r"cannot write .*/x.pt2: "):
            export_client(client, place / "x.pt2", "torch")
    monkeypatch.setattr(export, "PACKAGES", ("no_such_package",))
    with pytest.raises(ConfigError, match=r'needs no_such_package; .* pip install "tinyproto-fl\[export\]"'):
        export_client(client, tmp_path / "x")
    client.model.extractor = Choosy()
    with pytest.raises(ModelError, match=r"its `forward` has to be traceable"):
        export_client(client, tmp_path / "x.pt2", "torch")
    assert not list(tmp_path.iterdir())
