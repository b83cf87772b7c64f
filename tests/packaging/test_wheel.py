"""The wheel runs outside the repository: it is built, unpacked elsewhere and used from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from support_cli import environment
from tinyproto import __version__
from tinyproto.config.load import BUILT_IN

ROOT = Path(__file__).parents[2]
SMALL_WHEEL, SMALL_SDIST = 600_000, 2_000_000
"""Bytes; docs/how-to/install.md says 0.4 and 0.9 MB."""
CANNOT_BUILD = ("No module named pip", "No matching distribution found for hatchling")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    built = pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    if built.returncode and any(words in built.stdout for words in CANNOT_BUILD):
        pytest.skip("building the wheel needs pip and, from a package index, hatchling")
    assert built.returncode == 0, built.stdout
    (wheel,) = folder.glob("*.whl")
    installed = pip("install", "--no-deps", "--target", str(folder / "site"), str(wheel))
    assert installed.returncode == 0, installed.stdout
    return folder / "site"


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip


def python(site: Path, cwd: Path, *arguments: str) -> str:
    """What Python prints in a folder where `tinyproto` is the wheel's."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment(PYTHONPATH=os.fspath(site)), capture_output=True,
        encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def tinyproto(site: Path, cwd: Path, *arguments: str) -> str:
    return python(site, cwd, "-m", "tinyproto", *arguments)


def test_it_has_its_types_its_page_and_the_built_in_configs_as_in_the_repository(site: Path) -> None:
    package = site / "tinyproto"
    assert (package / "py.typed").is_file()
    assert (package / "report" / "page.css").is_file()
    for name in BUILT_IN:
        config = Path("configs") / f"{name}.yaml"
        assert (package / config).read_bytes() == (ROOT / config).read_bytes()


def test_it_has_neither_the_paper_nor_the_benchmarks(site: Path) -> None:
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} - {"bin", "__pycache__"} == {
        "tinyproto"
    }
    assert not [path for path in (site / "tinyproto").rglob("*") if path.name in ("paper", "benchmarks", "reproduce")]


def test_its_version_is_that_of_its_metadata(site: Path, tmp_path: Path) -> None:
    (metadata,) = site.glob("tinyproto_fl-*.dist-info")
    assert tinyproto(site, tmp_path, "--version") == f"tinyproto {__version__}\n"
    assert metadata.name == f"tinyproto_fl-{__version__}.dist-info"


def test_it_is_the_wheel_that_is_used_and_no_commit_is_claimed(site: Path, tmp_path: Path) -> None:
    where = python(site, tmp_path, "-c", "import tinyproto; print(tinyproto.__file__)")
    assert Path(where.strip()).is_relative_to(site)
    assert "commit" not in json.loads(tinyproto(site, tmp_path, "doctor", "--json"))["tinyproto"]


def test_a_new_user_runs_the_quickstart_and_reports_it_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    assert "tinyproto run quickstart" in tinyproto(site, tmp_path, "--help")
    assert "small_cnn_a" in tinyproto(site, tmp_path, "models")
    quick = ("train.rounds=2", "partition.num_clients=4", "algorithms=[local,tinyproto_ft]")
    told = json.loads(tinyproto(site, tmp_path, "run", "quickstart", *quick, "--json"))
    assert told["run"] == str(Path("runs") / "quickstart")
    assert "TinyProto-FT" in (tmp_path / "runs" / "quickstart" / "report.html").read_text(encoding="utf-8")
    tinyproto(site, tmp_path, "run", "runs/quickstart/config.yaml", "name=again")  # the file to start one's own from
    tinyproto(site, tmp_path, "report", "runs", "--out", "both.html")
    assert (tmp_path / "both.html").is_file()


def test_python_simulates_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    script = "import tinyproto as tp; print(tp.simulate(algorithm='fedproto', num_clients=4, rounds=2, seed=0))"
    assert "Result(fedproto, 2 rounds, 4 clients" in python(site, tmp_path, "-c", script)


def test_it_holds_the_library_and_nothing_else(site: Path) -> None:
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} <= {"tinyproto", "bin"}


def test_the_source_archive_is_small_and_gives_the_same_wheel(site: Path, tmp_path: Path) -> None:
    installed = pip("install", "--target", str(tmp_path / "tools"), "hatchling")
    assert installed.returncode == 0, installed.stdout
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)], cwd=ROOT,
        env=environment(PYTHONPATH=str(tmp_path / "tools")), check=True, capture_output=True,
    )  # fmt: skip
    (archive,) = tmp_path.glob("*.tar.gz")
    assert archive.stat().st_size < SMALL_SDIST
    with tarfile.open(archive) as opened:
        parts = {name.split("/")[1] for name in opened.getnames()}
    assert {"src", "tests", "docs", "configs", "LICENSE", "README.md"} <= parts
    assert "results" not in parts
    built = pip("wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(archive))
    assert built.returncode == 0, built.stdout
    (again,), (first,) = tmp_path.glob("*.whl"), site.parent.glob("*.whl")
    assert first.stat().st_size < SMALL_WHEEL
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(first).namelist()
