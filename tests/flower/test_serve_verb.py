"""What `tinyproto serve` looks at before it touches a run folder."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("flwr")

from support_cli import in_process, tree
from support_federation import CONFIG, free_port
from support_members import TOKEN
from tinyproto.cli import serve as serve_verb
from tinyproto.config import load_config
from tinyproto.errors import FederationError
from tinyproto.flower.certificates import make_keys
from tinyproto.flower.files import served_alone

pytestmark = pytest.mark.flower


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Keys, a config, and the run folder of a federation of it that was interrupted."""
    make_keys(tmp_path / "keys", 3, [])
    (tmp_path / "trial.yaml").write_text(CONFIG.format(rounds=3, quorum=0.5, deadline=60))
    folder = tmp_path / "runs" / "trial"
    folder.mkdir(parents=True)
    resolved = load_config(tmp_path / "trial.yaml", []).resolved()
    (folder / "config.yaml").write_text(yaml.safe_dump(resolved, sort_keys=False))
    (folder / "serve.json").write_text(json.dumps({"config": resolved, "federation": TOKEN}))
    (folder / "rounds.jsonl").write_text("{}\n")
    return tmp_path


class Serve:
    """The verb in this process, up to where Flower would be started."""

    def __init__(self, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.site, self.monkeypatch, self.capsys = site, monkeypatch, capsys
        self.registered: list[int] = []
        self.shown = ""
        serve = self

        class NoSuperLink:
            def __init__(self, *arguments: object) -> None:
                pass

            def stop(self) -> None:
                pass

            wait_until_up = stop

            def register(self, clients: Mapping[int, Path]) -> None:
                serve.registered = list(clients)
                raise FederationError("Flower would be started here")

        monkeypatch.setattr(serve_verb, "SuperLink", NoSuperLink)

    def __call__(self, *arguments: str, port: int | None = None) -> str:
        listen = f"127.0.0.1:{port or free_port()}"
        assert in_process(self.monkeypatch, self.site, "serve", *arguments, "--listen", listen) == 2
        self.shown, said = self.capsys.readouterr()
        return said

    def refused(self, words: str, *arguments: str, port: int | None = None) -> None:
        """In one sentence, and nothing in the run folder has changed."""
        before = tree(self.site / "runs" / "trial")
        said = self(*arguments, port=port)
        assert words in said
        assert len(said.splitlines()) == 1
        assert tree(self.site / "runs" / "trial") == before


@pytest.fixture
def serve(site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Serve:
    return Serve(site, monkeypatch, capsys)


@pytest.mark.parametrize("arguments", [("trial.yaml", "--overwrite"), ("runs/trial", "--resume")])
def test_nothing_is_touched_where_the_port_is_taken(arguments: tuple[str, ...], serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        serve.refused("cannot listen on", *arguments, port=int(taken.getsockname()[1]))


@pytest.mark.parametrize("arguments", [("trial.yaml", "--overwrite"), ("runs/trial", "--resume")])
def test_a_folder_that_is_being_served_is_nobody_elses(arguments: tuple[str, ...], serve: Serve) -> None:
    with served_alone(serve.site / "runs" / "trial"):
        serve.refused("another process serves the federation in", *arguments)
    assert "Flower would be started here" in serve(*arguments)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("train.rounds=9",), "train.rounds: 3 → 9"),
        (("federation.deadline=9", "train.workers=7"), "federation.deadline: 60.0 → 9.0"),
    ],
)
def test_a_federation_that_goes_on_takes_no_changes(change: tuple[str, ...], words: str, serve: Serve) -> None:
    serve.refused(words, "trial.yaml", *change, "--resume")


def test_a_config_that_was_changed_is_refused_and_an_equal_one_is_not(serve: Serve) -> None:
    file = serve.site / "trial.yaml"
    assert "Flower would be started here" in serve("trial.yaml", "--resume")
    file.write_text(file.read_text().replace("server_epochs: 5", "server_epochs: 6"))
    serve.refused("server_epochs: 5 → 6", "trial.yaml", "--resume")
    assert "Flower would be started here" in serve("runs/trial", "--resume")


def test_without_a_key_a_client_is_shut_out_of_what_goes_on_and_nothing_new_begins(serve: Serve) -> None:
    keys = serve.site / "keys" / "server" / "clients"
    (keys / "2.pub").unlink()
    serve.refused("has no key for client 2", "trial.yaml", "--overwrite")
    assert "Flower would be started here" in serve("runs/trial", "--resume")
    assert "keys has no key for client 2: no part in it without one" in serve.shown
    assert serve.registered == [0, 1]
    told: dict[str, Any] = json.loads((serve.site / "runs" / "trial" / "serve.json").read_text())
    assert sorted(told["keys"]) == ["0", "1"]
    for client in (0, 1):
        (keys / f"{client}.pub").unlink()
    serve.refused("has no key for client 0", "runs/trial", "--resume")
