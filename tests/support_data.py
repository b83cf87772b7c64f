"""Datasets of a few images in the official layouts."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyproto.data import Partition, Share

Array = NDArray[np.uint8]

CIFAR10_BINARY = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
CIFAR10_PYTHON = [name.removesuffix(".bin") for name in CIFAR10_BINARY]


def dirichlet_shares(
    labels: NDArray[np.int64], num_clients: int, alpha: float, seed: int, train_fraction: float = 0.75,
    min_samples: int = 1,
) -> list[Share]:  # fmt: skip
    asked = Partition(
        num_clients=num_clients, alpha=alpha, seed=seed, train_fraction=train_fraction, min_samples=min_samples
    )
    return asked.shares(labels)


def random_pixels(count: int, seed: int = 0) -> Array:
    """(count, 3072): red, green, blue, as CIFAR stores an image."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def write_binary(path: Path, pixels: Array, *label_columns: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = np.array(label_columns, dtype=np.uint8).T
    path.write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())


def write_cifar10_binary(folder: Path, per_file: int = 4) -> tuple[Array, list[int]]:
    """Six files of a few records; all pixels and labels in order."""
    pixels, labels = random_pixels(6 * per_file), [index * 7 % 10 for index in range(6 * per_file)]
    for number, name in enumerate(CIFAR10_BINARY):
        part = slice(number * per_file, (number + 1) * per_file)
        write_binary(folder / name, pixels[part], labels[part])
    return pixels, labels


class Python2Pickle:
    """Writes what Python 2's cPickle made of a mapping at protocol 2, which is what the official files are."""

    def __init__(self, by_column: bool = False) -> None:
        self.memo = 0
        self.by_column = by_column

    def dumps(self, mapping: dict[str, Any]) -> bytes:
        items = b"".join(self.string(key.encode()) + self.value(value) for key, value in mapping.items())
        return b"\x80\x02}" + self.put() + b"(" + items + b"u."

    def put(self) -> bytes:
        self.memo += 1
        return b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo)

    def value(self, value: Any) -> bytes:
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, list):
            return b"]" + self.put() + b"(" + b"".join(self.value(item) for item in value) + b"e"
        return self.string(value.encode()) if isinstance(value, str) else self.integer(value)

    def string(self, text: bytes) -> bytes:
        length = b"U" + bytes([len(text)]) if len(text) < 256 else b"T" + struct.pack("<i", len(text))
        return length + text + self.put()

    def integer(self, value: int) -> bytes:
        if 0 <= value < 1 << 16:
            return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)
        return b"J" + struct.pack("<i", value)

    def array(self, array: Array) -> bytes:
        rows, columns = array.shape
        made = b"cnumpy.core.multiarray\n_reconstruct\n" + self.put() + b"cnumpy\nndarray\n" + self.put() + b"K\x00\x85"
        made += self.put() + self.string(b"b") + b"\x87" + self.put() + b"R" + self.put()
        shape = self.integer(rows) + self.integer(columns) + b"\x86" + self.put()
        kind = b"cnumpy\ndtype\n" + self.put() + self.string(b"u1") + b"K\x00K\x01\x87" + self.put() + b"R" + self.put()
        kind += b"(K\x03" + self.string(b"|") + b"NNN" + 2 * self.integer(-1) + b"K\x00t" + self.put() + b"b"
        raw = self.string(array.tobytes("F" if self.by_column else "C"))
        flag = b"\x88" if self.by_column else b"\x89"
        return made + b"(K\x01" + shape + kind + flag + raw + b"t" + self.put() + b"b"


def picture(shade: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Any:
    """A Pillow image of one shade, but for a black first row."""
    from PIL import Image

    image = Image.new(mode, (size[1], size[0]), shade if mode in ("1", "L") else (shade, 255 - shade, 7)[: len(mode)])
    image.paste(Image.new(mode, (size[1], 1)), (0, 0))
    return image


def write_picture(path: Path, shade: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(shade, size, mode).save(path, quality=95)


def write_tiny_imagenet(folder: Path, classes: tuple[str, ...] = ("n01", "n02", "n03"), train: int = 3) -> None:
    """The official layout: val images are of the classes in turn; every second class's first train image is grey."""
    for number, name in enumerate(classes):
        for index in range(train):
            mode = "L" if index == 0 and number % 2 else "RGB"
            write_picture(
                folder / "train" / name / "images" / f"{name}_{index}.JPEG", 40 * number + 10 * index, mode=mode
            )
        boxes = "".join(f"{name}_{index}.JPEG\t0\t0\t7\t7\n" for index in range(train))
        (folder / "train" / name / f"{name}_boxes.txt").write_text(boxes)
    lines = []
    for index in range(2 * len(classes)):
        write_picture(folder / "val" / "images" / f"val_{index}.JPEG", 200 + index)
        lines.append(f"val_{index}.JPEG\t{classes[index % len(classes)]}\t0\t0\t7\t7\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(reversed(classes)) + "\n")
    write_picture(folder / "test" / "images" / "test_0.JPEG", 0)
