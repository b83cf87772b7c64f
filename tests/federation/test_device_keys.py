"""A device's files for MQTT: what its owner is told about missing or damaged ones, and what is not imported."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tinyproto.cli.client_folder import JoinOptions, check_keys_folder
from tinyproto.errors import FederationError
from tinyproto.federation.device_keys import DeviceKeys
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ServerKeys

pytestmark = [pytest.mark.flower, pytest.mark.mqtt]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", 2, [])
    return tmp_path / "keys"


def test_whole_files_are_opened(keys: Path) -> None:
    own = keys / "client-1"
    secret = bytes.fromhex((own / "mac.key").read_text())
    assert DeviceKeys.open(own, 1) == DeviceKeys(own / "ca.crt", own / "client.crt", own / "tls.key", secret)


def test_folders_that_this_user_may_not_read_are_named(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = Path.stat

    def denied(self: Path, **more: Any) -> Any:  # as for another user's folder of mode 700; tests may run as root
        if keys in self.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return stat(self, **more)

    monkeypatch.setattr(Path, "stat", denied)
    options = JoinOptions(1, keys / "client-1", None, None, None, "small_cnn_a", "cpu", keys.parent / "state")
    with pytest.raises(FederationError, match=r"client-1/client\.key cannot be read by this user; change the owner"):
        check_keys_folder(options)
    for use in (lambda: ServerKeys.open(keys), lambda: make_keys(keys, 2, [])):
        with pytest.raises(FederationError, match="cannot be read by this user; change the owner or mode of its"):
            use()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ca.crt", "copy the coordinator's server/ca.crt"),
        ("client.crt", "copy client-1 once more"),
        ("tls.key", "copy client-1 once more"),
        ("mac.key", "copy client-1 once more"),
    ],
)
@pytest.mark.parametrize("content", [None, "", "x\n", "-----BEGIN CERTIFICATE-----\n"])
def test_a_device_is_told_which_file_is_missing_or_damaged(
    content: str | None, name: str, remedy: str, keys: Path
) -> None:
    file = keys / "client-1" / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(FederationError) as caught:
        DeviceKeys.open(keys / "client-1", 1)
    said = str(caught.value)
    assert said.startswith(f"{file} is {'missing' if content is None else 'not a valid'}")
    assert remedy in said


def test_a_folder_without_any_file_has_to_be_copied(keys: Path) -> None:
    with pytest.raises(FederationError, match=r"client-7/client\.crt is missing; .* copy client-7 once more"):
        DeviceKeys.open(keys / "client-7", 7)


def test_a_device_is_told_that_certificate_and_key_differ(keys: Path) -> None:
    strange = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for wrong in ((keys / "client-0" / "tls.key").read_bytes(), strange):
        (keys / "client-1" / "tls.key").write_bytes(wrong)
        with pytest.raises(FederationError, match=r"tls\.key is not the key of .*client\.crt; .*copy client-1 once"):
            DeviceKeys.open(keys / "client-1", 1)


def test_a_device_is_not_asked_for_the_password_of_a_locked_key(keys: Path) -> None:
    file = keys / "client-1" / "tls.key"
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    locked = serialization.BestAvailableEncryption(b"word")
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(FederationError, match="locked with a password"):
        DeviceKeys.open(keys / "client-1", 1)


def test_a_device_imports_neither_cryptography_nor_torch() -> None:
    check = (
        "import sys, tinyproto.federation.device_keys; "
        "print([name for name in ('cryptography', 'torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
