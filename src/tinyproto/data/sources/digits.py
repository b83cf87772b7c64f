"""The embedded handwritten digits: 1 797 images of 8×8 pixels that come with scikit-learn, so nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch

from tinyproto.data.images import Images


def load(root: Path | None) -> Images:  # noqa: ARG001
    """All digits; the pixels 0 to 16 become −1 to 1."""
    from sklearn.datasets import load_digits  # slow to import

    digits = load_digits()
    return Images(
        name="digits",
        pixels=torch.from_numpy(digits.images.astype("uint8")).unsqueeze(1),
        labels=torch.from_numpy(digits.target.astype("int64")),
        num_classes=10,
        scale=1 / 8,
        shift=-1.0,
    )


def locate(root: Path | None) -> str:  # noqa: ARG001
    """Where the data is."""
    import sklearn

    return f"embedded in scikit-learn {sklearn.__version__}"
