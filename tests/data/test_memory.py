"""A dataset takes at most 1.2 × its raw size of memory at any moment, clients included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support_data import Python2Pickle, write_binary

MEGABYTE = 1 << 20
MEASURE = """
import json, sys
import PIL.Image, PIL.PngImagePlugin
from tinyproto.data import FederatedData, Partition, load

def resident(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

def measure(name, root):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    images = load(name, root)
    data = FederatedData(images, Partition(num_clients=5, alpha=1.0).shares(images.labels.numpy()))
    clients = [(data.train(client), data.test(client)) for client in range(5)]
    assert sum(len(part) for parts in clients for part in parts) == len(images)
    return [images.inputs.numel(), resident("VmHWM") - before]

measure("digits", None)
print(json.dumps({name + root[-6:]: measure(name, root) for name, root in json.loads(sys.argv[1])}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory can be measured on Linux only")
def test_no_source_takes_more_than_1_2_times_the_raw_size(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20_000, 3072), dtype=np.uint8)  # 61 MB
    labels = [index % 100 for index in range(len(pixels))]
    parts = {"train": slice(0, 16_000), "test": slice(16_000, None)}
    for name, part in parts.items():
        write_binary(tmp_path / "binary" / f"{name}.bin", pixels[part], [0] * len(labels[part]), labels[part])
        (tmp_path / "python").mkdir(exist_ok=True)
        batch = {"fine_labels": labels[part], "data": pixels[part]}
        (tmp_path / "python" / name).write_bytes(Python2Pickle().dumps(batch))
    last = pixels.reshape(-1, 32, 32, 3)
    x_train, x_test = last[parts["train"]], last[parts["test"]]
    y_train, y_test = labels[parts["train"]], labels[parts["test"]]
    np.savez(tmp_path / "ys.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    for index in range(500):
        (tmp_path / "folder" / str(index % 4)).mkdir(parents=True, exist_ok=True)
        shade = Image.new("RGB", (200, 200), (index % 256, 0, 0))
        shade.save(tmp_path / "folder" / str(index % 4) / f"{index}.png", compress_level=1)
    asked = [("cifar100", "binary"), ("cifar100", "python"), ("npz", "ys.npz"), ("image_folder", "folder")]
    arguments = json.dumps([(name, str(tmp_path / root)) for name, root in asked])
    done = subprocess.run([sys.executable, "-c", MEASURE, arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert len(measured) == len(asked)
    for name, (raw, peak) in measured.items():
        assert raw > 55 * MEGABYTE
        assert peak <= 1.2 * raw, f"{name}: {peak / raw:.3f} × the raw size"
