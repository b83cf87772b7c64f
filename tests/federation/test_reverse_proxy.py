"""The reverse proxy that docs/how-to/harden.md shows lets clients through, and nothing else."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx

from support_docs import ROOT, blocks_of
from support_federation import Federation, eventually, free_port

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
pytestmark = [
    pytest.mark.flower,
    pytest.mark.flower_slow,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx"),
]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, rounds=1, quorum=0.3, deadline=15)
    yield made
    made.clean_up()


@pytest.fixture
def port(federation: Federation) -> Iterator[int]:
    """Start the page's proxy in front of the federation; return its port."""
    (shown,) = [block for block in blocks_of(ROOT / "docs" / "how-to" / "harden.md") if "proxy_pass" in block.text]
    found = free_port()
    text = shown.text.replace("listen 8444", f"listen {found}").replace(
        "127.0.0.1:8443", f"127.0.0.1:{federation.port}"
    )
    text = text.replace(" keys/", f" {federation.folder}/keys/")
    assert text.count(str(federation.folder)) == 3
    config = federation.folder / "nginx.conf"
    config.write_text(f"daemon off;\npid nginx.pid;\nerror_log stderr;\n{text}")
    assert NGINX is not None
    command = [NGINX, "-p", str(federation.folder), "-c", str(config), "-e", "stderr"]
    with (federation.folder / "nginx.out").open("w") as stream:
        nginx = subprocess.Popen(command, stderr=stream)
    yield found
    nginx.terminate()
    nginx.wait(10)


def test_clients_take_part_through_it_and_nobody_reaches_more(federation: Federation, port: int) -> None:
    serve = federation.serve()
    join = federation.join(0, server=f"localhost:{port}")
    eventually(lambda: "is connected" in join.said, 90, federation.tail())
    context = ssl.create_default_context(cafile=str(federation.folder / "keys" / "server" / "ca.crt"))
    with httpx.Client(base_url=f"https://localhost:{port}", verify=context, trust_env=False) as client:
        for path in (
            "/v1/control/list-runs", "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task",
            "/v1/fleet/register-node", "/v1/fleet/../control/list-runs", "/docs", "/health", "/",
        ):  # fmt: skip
            assert client.post(path).status_code == 404, path
        assert client.get("/v1/fleet/pull-messages").status_code == 403
        assert client.post("/v1/fleet/pull-messages", content=b"").status_code == 415, "the SuperLink itself answers"
    assert serve.wait(180) == 0, federation.tail()
    assert join.wait(90) == 0
    assert federation.events("answered", client=0, round=1)
