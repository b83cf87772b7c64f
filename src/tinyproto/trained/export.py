"""Export a trained client to one file that takes raw inputs and answers with scores, checked after it is written."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tinyproto.core.streams import one_thread
from tinyproto.core.task import as_seen
from tinyproto.errors import ConfigError, ModelError, one_line
from tinyproto.imports import unknown
from tinyproto.trained.client import TrainedClient

FORMATS: Mapping[str, str] = {"onnx": ".onnx", "torch": ".pt2"}
"""Formats and the suffixes of their files."""

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUT = "inputs", "scores"
FACTS_FILE = "tinyproto.json"
"""The name of the facts inside a file of torch.export; ONNX has them in its metadata."""

Answers = Callable[[Tensor], Tensor]
_RUNS = 30


class Exported(NamedTuple):
    """A file that was written and gave our answers."""

    file: Path
    bytes: int
    milliseconds: float  # per input, one at a time, on one core of this machine
    difference: float  # the largest between its scores and ours


class Classifier(nn.Module):
    """Raw inputs to float32 scores by one rule: normalisation, network and prototypes in one module."""

    scale: Tensor
    shift: Tensor

    def __init__(self, client: TrainedClient, rule: str) -> None:
        super().__init__()
        scale, shift = client.inputs.factors()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.extractor = client.model.extractor
        self.rule = client.rule(rule)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map raw inputs (N, ...) to scores (N, K)."""
        scores: Tensor = self.rule(self.extractor(as_seen(inputs, self.scale, self.shift)))
        return scores.float()


def export_client(client: TrainedClient, file: Path, format_: str = "onnx", rule: str = "global") -> Exported:
    """Write a client as one file, `onnx` or `torch` (torch.export), and compare its answers with ours.

    Raise ConfigError if the client lacks the rule or a package is missing, ModelError if the network cannot be
    exported or the file answers otherwise.
    """
    if format_ not in FORMATS:
        raise ConfigError(unknown("format", format_, FORMATS))
    if format_ == "onnx":
        require_packages()
    module = Classifier(client, rule).eval()
    write, read = (_write_onnx, _read_onnx) if format_ == "onnx" else (_write_torch, _read_torch)
    partial = file.with_name(f".{file.stem}.partial{FORMATS[format_]}")
    try:
        partial.touch()  # a folder that is missing shows before the work
        with _quiet():
            write(module, _samples(client, 2), facts_of(client, rule), partial)
            answers = read(partial)
            difference = _compare(client, rule, answers)
        with one_thread():
            milliseconds = _time(answers, _samples(client, 1))
        partial.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # it would hide the first error
            partial.unlink(missing_ok=True)
    return Exported(file, file.stat().st_size, milliseconds, difference)


def require_packages() -> None:
    """Raise ConfigError if a package that ONNX files need is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f'ONNX needs {", ".join(missing)}; install the extra: pip install "tinyproto-fl[export]"')


def facts_of(client: TrainedClient, rule: str) -> dict[str, str]:
    """Return what a file says of itself: classes, the columns of a table, the rule, and whose network it is."""
    names = ("dataset", "algorithm", "seed", "client", "network")
    facts = {name: str(client.facts[name]) for name in names if name in client.facts}
    lists = {"classes": client.classes, "columns": client.inputs.columns}
    words = {name: json.dumps(values, ensure_ascii=False) for name, values in lists.items() if values is not None}
    return {**words, "rule": rule, "white": str(client.inputs.white), **facts}


def _samples(client: TrainedClient, count: int) -> Tensor:
    """Return raw inputs of the right kind, drawn from a generator of their own."""
    shape, drawn = (count, *client.inputs.shape), torch.Generator().manual_seed(0)
    if client.inputs.dtype.is_floating_point:
        scale, shift = client.inputs.factors()
        return (torch.randn(shape, generator=drawn) - shift) / scale
    end = client.inputs.vocabulary or client.inputs.white + 1
    return torch.randint(end, shape, generator=drawn).to(client.inputs.dtype)


def _write_torch(module: Classifier, example: Tensor, facts: Mapping[str, str], file: Path) -> None:
    content = io.BytesIO()  # torch itself would hide the system's words for a full disk
    torch.export.save(_program(module, example), content, extra_files={FACTS_FILE: json.dumps(facts)})
    file.write_bytes(content.getvalue())


def _read_torch(file: Path) -> Answers:
    module = torch.export.load(file).module()

    def answers(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            scores: Tensor = module(inputs)
        return scores

    return answers


def _write_onnx(module: Classifier, example: Tensor, facts: Mapping[str, str], file: Path) -> None:
    try:
        program = torch.onnx.export(
            _program(module, example), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
        )
    except Exception as error:
        raise ModelError(f"the network cannot be exported to ONNX: {one_line(error)}") from error
    assert program is not None
    program.model.metadata_props.update(facts)
    program.save(file, external_data=False)


def _read_onnx(file: Path) -> Answers:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {INPUT: inputs.numpy()})[0])


def _program(module: Classifier, example: Tensor) -> torch.export.ExportedProgram:
    try:
        with torch.no_grad():
            return torch.export.export(module, (example,), dynamic_shapes={INPUT: {0: torch.export.Dim("batch")}})
    except Exception as error:
        raise ModelError(
            f"the network cannot be exported: its `forward` has to be traceable, for a batch of any size, by "
            f"torch.export: {one_line(error)}"
        ) from error


def _compare(client: TrainedClient, rule: str, answers: Answers) -> float:
    """Return the largest difference to our own scores; raise ModelError if it is more than rounding."""
    largest = 0.0
    for count in (1, 5):
        inputs = _samples(client, count)
        ours, theirs = client.predict(inputs, rule).scores.float(), answers(inputs)
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
            raise ModelError("the exported file gives other scores than the network; it was not kept")
        apart = (ours - theirs)[ours.isfinite()].abs()
        largest = max(largest, float(apart.max()))
    return largest


def _time(answers: Answers, one: Tensor) -> float:
    """Return the median milliseconds of an answer to one input."""
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        answers(one)
        seconds.append(time.perf_counter() - start)
    return 1000 * sorted(seconds)[_RUNS // 2]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters: their warnings are about packages and classes of their own."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
