"""Compare what this checkout computes with what another commit computes, byte for byte.

Run `python tests/pin.py COMMIT` before and after a change that must not change results. It covers, for every algorithm
with one and with two workers, the bytes of rounds.jsonl, federation.json and the prototypes; the frames that travel
for each value type, rounding, download and preset (their checksums cover the federation's digest, which covers the
masks); the partitions of every kind; and the key by which each committed record of the paper is recognised.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = (
    "local", "fedavg", "lg_fedavg", "fml", "fedkd", "feddistill", "fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft",
)  # fmt: skip
ADDED = ("anchors", "tinyproto_sphere", "fedgh", "protonorm", "fedsa", "fedorgp")  # earlier commits lack them
SMALL: dict[str, Any] = {
    "name": "pin",
    "data": {"name": "digits"},
    "partition": {"alpha": 0.5, "num_clients": 6, "seed": 1},
    "prototypes": {"dim": 40, "cps_dim": 8},
    "train": {"rounds": 3, "batch_size": 16, "learning_rate": 0.02},
    "seeds": [0, 1],
}
MIXED, ALIKE = ["small_cnn_a", "small_cnn_b", "small_cnn_c"], ["small_cnn_a"]
KINDS = (
    {"kind": "dirichlet", "alpha": 0.1, "num_clients": 20},
    {"kind": "iid", "num_clients": 7},
    {"kind": "pathological", "num_clients": 10, "classes_per_client": 2},
    {"kind": "quantity", "num_clients": 6, "alpha": 0.3},
)


def digest(content: bytes) -> str:
    """Return a short digest."""
    return hashlib.sha256(content).hexdigest()[:16]


def pins(root: Path) -> dict[str, str]:
    """Return every pin of a checkout by name, each computed by that checkout's own code."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for part in PARTS:
            env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
            command = [sys.executable, str(Path(__file__).resolve()), "--part", part, "--root", str(root)]
            done = subprocess.run(command, env=env, cwd=scratch, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{part} at {root}:\n{done.stderr}")
            found |= json.loads(done.stdout.splitlines()[-1])
    return found


def known(names: Iterable[str]) -> list[str]:
    """Return those of the algorithms that this checkout has."""
    found: Any = importlib.import_module("tinyproto.algorithms").ALGORITHMS
    return [name for name in names if name in found]


def runs(root: Path) -> dict[str, str]:
    """Pin the files of runs with one and with two workers."""
    found = {}
    for workers in (1, 2):
        mixed, added = [name for name in ALGORITHMS if name != "fedavg"], known(ADDED)
        for models, algorithms in ((MIXED, mixed), (ALIKE, ["fedavg"]), (MIXED[:2], added)):
            if not algorithms:
                continue
            train = {**SMALL["train"], "workers": workers}
            values = {**SMALL, "train": train, "models": models, "algorithms": list(algorithms)}
            Path("config.yaml").write_text(json.dumps(values))
            command = [sys.executable, "-m", "tinyproto", "run", "config.yaml", "--overwrite", "--quiet"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            for name in ("rounds.jsonl", "federation.json", "prototypes.safetensors"):
                content = (Path("runs/pin") / name).read_bytes()
                found[f"run, {workers} workers, {len(models)} networks, {name}"] = digest(content)
    return found


def frames(root: Path) -> dict[str, str]:
    """Pin the frames of small simulations."""
    import tinyproto

    codec: Any = importlib.import_module("tinyproto.wire.codec")
    seen: list[bytes] = []  # sorted below: the order in which frames are made is no result
    pack = codec.pack

    def recorded(*args: Any) -> bytes:
        frame: bytes = pack(*args)
        seen.append(hashlib.sha256(frame).digest())
        return frame

    codec.pack = recorded
    wires: list[dict[str, Any]] = [{}]
    wires += [{"up": kind, "down": kind, "rounding": how} for kind in ("float16", "bfloat16", "int8", "int4")
              for how in ("nearest", "stochastic")]  # fmt: skip
    wires += [{"download": "held"}, {"up": "int4", "down": "int8", "download": "held"}]
    found = {}
    for name in known((*ALGORITHMS, *ADDED)):
        for wire in wires if name in ("fedproto", "tinyproto_fp", "tinyproto_ft", "fedkd") else wires[:1]:
            for preset in ("sound", "reference", "paper") if not wire else ("sound",):
                seen.clear()
                scale = (
                    0.05 if preset != "sound" and name in ("tinyproto_fp", "tinyproto_ft") else None
                )  # none was published
                tinyproto.simulate(
                    algorithm=name if scale is None else {"name": name, "global_scale": scale},
                    models=ALIKE if name == "fedavg" else MIXED,
                    num_clients=5,
                    alpha=0.5,
                    rounds=2,
                    proto_dim=30,
                    preset=preset,
                    settings={"wire": wire} if wire else None,
                )
                found[f"frames, {name}, {preset}, {wire}"] = digest(b"".join(sorted(seen)))
    return found


def partitions(root: Path) -> dict[str, str]:
    """Pin who holds what, and how many samples of each class, for every kind of partition."""
    import tinyproto
    from tinyproto.config.load import parse_config

    module: Any = importlib.import_module("tinyproto.data.partition")
    if not hasattr(module, "holdings"):  # as it was before the partitions were in one module
        module = importlib.import_module("tinyproto.data.partition_kinds")

    images = tinyproto.data.load("digits")
    found = {}
    for kind in KINDS:
        values = {
            "models": ALIKE,
            "algorithms": ["local"],
            "data": {"name": "digits"},
            "partition": {**kind, "seed": 3},
        }
        shares = parse_config(values, "pin").model.partition.asked().shares(images.labels.numpy())
        content = b"".join(part.astype("<i8").tobytes() for share in shares for part in (share.train, share.test))
        counts = json.dumps(module.holdings(images.labels.numpy(), shares, images.num_classes)).encode()
        found[f"partition, {kind}"] = digest(content) + digest(counts)
    return found


def records(root: Path) -> dict[str, str]:
    """Pin which cell of the paper each committed record is."""
    inside = (root / "src" / "tinyproto" / "reproduce").is_dir()  # as it was before the paper had a folder of its own
    package, reader = ("tinyproto.reproduce", "records") if inside else ("paper", "records_reader")
    experiments: Any = importlib.import_module(f"{package}.experiments").experiments
    paper_cells: Any = importlib.import_module(f"{package}.matching").paper_cells
    find_finished: Any = importlib.import_module(f"{package}.{reader}").find_finished

    cells: dict[str, list[str]] = {}
    for paper in experiments():
        for preset in ("sound", "reference", "paper"):
            for cell in paper_cells(paper, preset):
                cells.setdefault(cell.key, []).append(f"{cell.stem}/{cell.label}/{preset}")
    folders = [folder for folder in (root / "results" / "reproduction", root / "paper" / "records") if folder.is_dir()]
    found = {}
    for folder in folders:
        for one in find_finished(folder):
            name = f"{one.folder.relative_to(folder)}, {one.result['label']}, seed {one.seed}, {one.rounds} rounds"
            found[f"record, {name}"] = ", ".join(sorted(cells.get(one.key, ["unknown"])))
    return found


PARTS = {"runs": runs, "frames": frames, "partitions": partitions, "records": records}


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "checkout"
        subprocess.run(["git", "worktree", "add", "--detach", "-q", str(path), commit], cwd=ROOT, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(path)], cwd=ROOT, check=True)


def main() -> None:
    """Compare, and exit with status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", help="the commit to compare with")
    parser.add_argument("--save", type=Path, help="write the pins of the working tree, or of COMMIT, to a file")
    parser.add_argument("--compare", type=Path, help="compare the working tree with pins written before")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        print(json.dumps(PARTS[asked.part](asked.root)))
        return
    if asked.compare:
        before = json.loads(asked.compare.read_text())
    elif asked.commit:
        with checkout(asked.commit) as path:
            before = pins(path)
    else:
        before = pins(ROOT)
    if asked.save:
        asked.save.write_text(json.dumps(before, indent=1))
        print(f"{len(before)} pins written to {asked.save}")
        return
    after = pins(ROOT)
    wrong = [name for name in before if before[name] != after.get(name)]
    for name in sorted(wrong):
        print(f"differs: {name}: {before.get(name)} before, {after.get(name)} now")
    print(f"{len(before)} pins, {len(wrong)} differ, {len(after.keys() - before.keys())} new")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
