"""Classify images with a file of `tinyproto export`, on a device that has neither torch nor tinyproto.

It needs `pip install onnxruntime pillow`: python classify_with_onnx.py client.onnx photo.png …
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime
from PIL import Image


def main(model: str, *photos: str) -> None:
    """Print the class and the score of each photo, and the time that the network took."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    classes = json.loads(facts["classes"])
    _, channels, height, width = session.get_inputs()[0].shape
    for photo in photos:
        image = Image.open(photo).convert("L" if channels == 1 else "RGB")
        pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        if facts["white"] != "255":  # the digits have 16 shades
            pixels = np.rint(pixels * (int(facts["white"]) / 255)).astype(np.uint8)
        batch = pixels.reshape(1, height, width, channels).transpose(0, 3, 1, 2)
        start = time.perf_counter()
        (scores,) = session.run(None, {"inputs": np.ascontiguousarray(batch)})
        milliseconds = 1000 * (time.perf_counter() - start)
        best = int(scores[0].argmax())
        print(f"{photo}: {classes[best]}, {facts['rule']} score {scores[0, best]:.3g}, {milliseconds:.2f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
