"""Tiny-ImageNet-200 from the official folder: train sorted as in an ImageFolder, then val by val_annotations.txt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tinyproto.data.dataset import Dataset
from tinyproto.data.decode import ImageFiles
from tinyproto.data.sources.base import (
    DEFAULT_ROOT,
    Request,
    check_first_classes,
    fetch_again,
    fetch_command,
    part_name,
)
from tinyproto.data.sources.image_folder import images_below, subfolders
from tinyproto.errors import DataError

NAME = "tiny_imagenet"
FOLDER = "tiny-imagenet-200"
PER_CLASS = 550
"""Images of each class, train and val together."""


def load(request: Request) -> Dataset:
    """Load the images of all classes, or of the first ones if their number is asked for."""
    return listing(request).load(request.cache, request.progress)


class _Missing(Exception):  # noqa: N818
    """A file is missing or incomplete."""


def listing(request: Request) -> ImageFiles:
    """List the images of all classes, or of the first so many, in colour."""
    root = request.root or DEFAULT_ROOT
    folder = next((folder for folder in (root / FOLDER, root) if (folder / "train").is_dir()), None)
    if folder is None:
        raise DataError(
            f"{NAME} is missing: no folder at {root / FOLDER / 'train'}; set data.root to the folder that holds "
            f"{FOLDER}, or run: {fetch_command(NAME, root)}"
        )
    remedy = fetch_again(folder, NAME, root)
    try:
        there = _classes(folder)
        count = _count(folder, there, request.first_classes)
        classes = there[:count]
        numbers = {name: number for number, name in enumerate(classes)}
        found = [*_train(folder, numbers), *_validation(folder, numbers)]
    except _Missing as missing:
        raise DataError(f"{missing}; {remedy}") from None
    return ImageFiles(
        source=NAME,
        name=_name(classes, len(found)),
        folder=folder,
        paths=[path for path, _ in found],
        labels=[label for _, label in found],
        classes=classes,
        first_classes=count,
        size=None,
        remedy=remedy,
        class_names=_class_names(folder, classes),
    )


def _class_names(folder: Path, classes: list[str]) -> list[str]:
    """Return the first word for each wnid in words.txt; the wnid if there is none, or if a name would occur twice."""
    file = folder / "words.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    words = {wnid: names.split(",")[0].strip() for wnid, _, names in (line.partition("\t") for line in lines)}
    found = [words.get(wnid) or wnid for wnid in classes]
    return [name if found.count(name) == 1 else wnid for name, wnid in zip(found, classes, strict=True)]


def _name(classes: list[str], images: int) -> str:
    """Name the dataset, its first classes if they are complete, or else the part of it that is there."""
    count, total = len(classes), len(WNIDS)
    if tuple(classes) == WNIDS[:count] and images == count * PER_CLASS:
        return NAME if count == total else part_name(NAME, count)
    return f"{NAME} ({count} of {total} classes, {images} of {total * PER_CLASS} images)"


def _classes(folder: Path) -> list[str]:
    """Return the sorted names of the train folders, which have to be those of wnids.txt if that file exists."""
    classes = subfolders(folder / "train")
    if (folder / "wnids.txt").is_file():
        listed = (folder / "wnids.txt").read_text().split()
        different = sorted(set(listed) ^ set(classes))
        if different:
            raise _Missing(f"{folder / 'train'} and wnids.txt differ: only one of them has {different[0]}")
    if not classes:
        raise _Missing(f"{folder / 'train'} has no class folders")
    return classes


def _count(folder: Path, there: list[str], first_classes: int | None) -> int | None:
    """Return the number of classes to take, None for all; raise _Missing if one of the first classes is missing."""
    count = check_first_classes(first_classes, len(there), folder)
    if first_classes is not None and set(there) <= set(WNIDS):
        missing = next((name for name in WNIDS[:first_classes] if name not in there), None)
        if missing is not None:
            raise _Missing(f"{folder / 'train' / missing} is missing, one of the first {first_classes} classes")
    return count


def _train(folder: Path, numbers: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name, number in numbers.items():
        paths = list(images_below(folder / "train" / name))
        there = {Path(path).name for path in paths}
        boxes = folder / "train" / name / f"{name}_boxes.txt"  # in the official folder, this names every image
        listed = [line.split("\t")[0] for line in boxes.read_text().splitlines()] if boxes.is_file() else []
        missing = next((image for image in listed if image not in there), None)
        if missing is not None or not paths:
            raise _Missing(f"{folder / 'train' / name / 'images' / (missing or '*.JPEG')} is missing")
        yield from ((f"train/{name}/{path}", number) for path in paths)


def _validation(folder: Path, numbers: Mapping[str, int]) -> list[tuple[str, int]]:
    """List the images of these classes by class and name, as if they were sorted into class folders."""
    annotations = folder / "val" / "val_annotations.txt"
    if not annotations.is_file():
        raise _Missing(f"{annotations} is missing, which has the labels of val")
    classes = dict(line.split("\t")[:2] for line in annotations.read_text().splitlines() if line.count("\t"))
    there = set(images_below(folder / "val" / "images"))
    for name in sorted(there | classes.keys()):
        if name not in there:
            raise _Missing(f"{folder / 'val' / 'images' / name} is missing")
        if name not in classes:
            raise _Missing(f"{annotations} is truncated: it has no line for {name}")
    held = [(numbers[class_], f"val/images/{name}") for name, class_ in classes.items() if class_ in numbers]
    return [(path, number) for number, path in sorted(held)]


_LINES = """
n01443537 n01629819 n01641577 n01644900 n01698640 n01742172 n01768244 n01770393 n01774384 n01774750
n01784675 n01855672 n01882714 n01910747 n01917289 n01944390 n01945685 n01950731 n01983481 n01984695
n02002724 n02056570 n02058221 n02074367 n02085620 n02094433 n02099601 n02099712 n02106662 n02113799
n02123045 n02123394 n02124075 n02125311 n02129165 n02132136 n02165456 n02190166 n02206856 n02226429
n02231487 n02233338 n02236044 n02268443 n02279972 n02281406 n02321529 n02364673 n02395406 n02403003
n02410509 n02415577 n02423022 n02437312 n02480495 n02481823 n02486410 n02504458 n02509815 n02666196
n02669723 n02699494 n02730930 n02769748 n02788148 n02791270 n02793495 n02795169 n02802426 n02808440
n02814533 n02814860 n02815834 n02823428 n02837789 n02841315 n02843684 n02883205 n02892201 n02906734
n02909870 n02917067 n02927161 n02948072 n02950826 n02963159 n02977058 n02988304 n02999410 n03014705
n03026506 n03042490 n03085013 n03089624 n03100240 n03126707 n03160309 n03179701 n03201208 n03250847
n03255030 n03355925 n03388043 n03393912 n03400231 n03404251 n03424325 n03444034 n03447447 n03544143
n03584254 n03599486 n03617480 n03637318 n03649909 n03662601 n03670208 n03706229 n03733131 n03763968
n03770439 n03796401 n03804744 n03814639 n03837869 n03838899 n03854065 n03891332 n03902125 n03930313
n03937543 n03970156 n03976657 n03977966 n03980874 n03983396 n03992509 n04008634 n04023962 n04067472
n04070727 n04074963 n04099969 n04118538 n04133789 n04146614 n04149813 n04179913 n04251144 n04254777
n04259630 n04265275 n04275548 n04285008 n04311004 n04328186 n04356056 n04366367 n04371430 n04376876
n04398044 n04399382 n04417672 n04456115 n04465501 n04486054 n04487081 n04501370 n04507155 n04532106
n04532670 n04540053 n04560804 n04562935 n04596742 n04597913 n06596364 n07579787 n07583066 n07614500
n07615774 n07695742 n07711569 n07715103 n07720875 n07734744 n07747607 n07749582 n07753592 n07768694
n07871810 n07873807 n07875152 n07920052 n09193705 n09246464 n09256479 n09332890 n09428293 n12267677
"""

WNIDS = tuple(_LINES.split())
"""The class folders in the order of their labels."""
