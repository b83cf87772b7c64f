"""Build a checked SplitModel from an entry of `models:`: a registered name, a dotted path, a factory or a module."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tinyproto.core.streams import global_randomness
from tinyproto.errors import ModelError, one_line
from tinyproto.imports import load_dotted, unknown
from tinyproto.models.efficientnet import efficientnet_b0
from tinyproto.models.mobilenet_v2 import mobilenet_v2
from tinyproto.models.resnet8 import resnet8
from tinyproto.models.shufflenet_v2 import X0_5, shufflenet_v2
from tinyproto.models.small_cnn import small_cnn
from tinyproto.models.small_networks import small_cnn1d, small_mlp, small_text
from tinyproto.models.split import SplitModel

ModelFactory = Callable[..., nn.Module]


SMALL_CNNS: Mapping[str, ModelFactory] = {
    "small_cnn_a": partial(small_cnn, channels=(16, 32)),
    "small_cnn_b": partial(small_cnn, channels=(16, 32, 32), batch_norm=True),
    "small_cnn_c": partial(small_cnn, channels=(32,), kernel=5),
    "small_cnn_d": partial(small_cnn, channels=(24, 48, 48), batch_norm=True, separable=True),
}
"""Networks for quick trials on a CPU."""

MLPS: Mapping[str, ModelFactory] = {
    "small_mlp_a": partial(small_mlp, widths=(64,)),
    "small_mlp_b": partial(small_mlp, widths=(128, 64)),
}
"""Networks for tables; they take inputs of any shape but token ids."""

CNNS_1D: Mapping[str, ModelFactory] = {
    "small_cnn1d_a": partial(small_cnn1d, channels=(16, 32)),
    "small_cnn1d_b": partial(small_cnn1d, channels=(16, 32, 32), kernel=3, batch_norm=True),
}
"""Networks for signals (channels, steps)."""

TEXT: Mapping[str, ModelFactory] = {
    "small_text_a": partial(small_text, width=64),
    "small_text_b": partial(small_text, width=64, kernel=3),
}
"""Networks for token ids (length,)."""

PUBLISHED: Mapping[str, ModelFactory] = {
    "resnet8": resnet8,
    "mobilenet_v2": mobilenet_v2,
    "shufflenet_v2": shufflenet_v2,
    "efficientnet_b0": efficientnet_b0,
    "shufflenet_v2_x0_5": partial(shufflenet_v2, stages=X0_5),
}
"""The networks of TinyProto's paper: the first four in its experiments, in this order, the last in its Figure 1."""

SMALL_IMAGES = "_small_images"
"""Suffix of variants that differ from the paper: their stem has stride 1, so that small images keep their detail."""

NETWORKS: Mapping[str, ModelFactory] = {
    **SMALL_CNNS,
    **PUBLISHED,
    **{f"{name}{SMALL_IMAGES}": partial(factory, small_images=True) for name, factory in PUBLISHED.items()},
    **MLPS,
    **CNNS_1D,
    **TEXT,
}
"""All networks that a config can name."""


ModelEntry = str | ModelFactory | nn.Module


@dataclass(frozen=True)
class ModelShape:
    """The sizes that a network has to fit; a factory gets those that it has parameters for."""

    input_shape: tuple[int, ...]
    proto_dim: int
    num_classes: int
    head_dropout: float = 0.0  # for networks with dropout before the head
    vocabulary: int | None = None  # the number of token ids; None if inputs are floats
    head_dropout_in_place: bool = False  # True if that dropout changes the features too

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of a network's input."""
        return torch.float32 if self.vocabulary is None else torch.int64

    def pair(self) -> Tensor:
        """Return a batch of two samples of zeros, to try a network with."""
        return torch.zeros(2, *self.input_shape, dtype=self.dtype)


def small_networks(input_shape: tuple[int, ...], vocabulary: int | None) -> Mapping[str, ModelFactory]:
    """Return the registered networks for quick trials on such inputs."""
    if vocabulary is not None:
        return TEXT
    return {3: SMALL_CNNS, 2: CNNS_1D}.get(len(input_shape), MLPS)


def entry_name(entry: ModelEntry) -> str:
    """Return the name of an entry for messages and records."""
    if isinstance(entry, str):
        return entry
    named = type(entry) if isinstance(entry, nn.Module) else entry
    return str(getattr(named, "__qualname__", named))


def build_model(entry: ModelEntry, shape: ModelShape, seed: int, *, check: bool = True) -> SplitModel:
    """Build a network for one client with weights drawn from `seed`, and check it with one batch.

    `check=False` saves the batch for a network that was checked before. A factory may return a SplitModel, or a module
    with `proto_dim` features, which then gets a linear head. A module given as an object is copied with its weights.
    """
    name = entry_name(entry)
    found = find_model(entry)
    with global_randomness(seed):
        module = _copied(found, name) if isinstance(found, nn.Module) else _call(found, name, shape)
        if not isinstance(module, SplitModel):
            module = SplitModel(module, nn.Linear(shape.proto_dim, shape.num_classes))
        if check or any(is_lazy(tensor) for tensor in chain(module.parameters(), module.buffers())):
            _probe(module, name, shape)  # where lazy layers draw their weights
    module.registered = isinstance(entry, str) and entry in NETWORKS  # not one that was changed since it was built
    module.any_layout = module.any_layout or module.registered
    return module


def find_model(entry: ModelEntry) -> ModelFactory | nn.Module:
    """Return the factory or the module that an entry names, without building anything."""
    if not isinstance(entry, str):
        return entry
    if ":" in entry:
        found: ModelFactory | nn.Module = load_dotted(entry, ModelError, "model")
        if not callable(found):
            raise ModelError(f"model {entry!r} is {type(found).__name__}, not a factory or a network")
        return found
    if entry not in NETWORKS:
        package, _, name = entry.rpartition(".")
        hint = f", such as {package}:{name}" if package else ""
        raise ModelError(unknown("model", entry, NETWORKS, f", or a dotted path package.module:factory{hint}"))
    return NETWORKS[entry]


def _copied(module: nn.Module, name: str) -> nn.Module:
    try:
        copied = copy.deepcopy(module)
    except Exception as error:  # it keeps results of a forward pass, for instance
        reason = one_line(error)
    else:
        if all(parameter.is_leaf for parameter in copied.parameters()):
            return copied
        reason = "the copy could not be trained, as with TorchScript"
    raise ModelError(f"model {name} cannot be copied ({reason}); pass a function that returns it")


def _call(factory: ModelFactory, name: str, shape: ModelShape) -> nn.Module:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    said = {key: value for key, value in asdict(shape).items() if value is not None and value is not False}
    given = {key: value for key, value in asdict(shape).items() if key in said or key in parameters}
    arguments: dict[str, Any] = {key: value for key, value in given.items() if takes_any or key in parameters}
    try:
        module = factory(**arguments)
    except ModelError as error:
        raise ModelError(f"model {name}: {error}") from error
    except Exception as error:
        raise ModelError(f"model {name}: its factory failed with {one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"model {name}: its factory returned {type(module).__name__}, not a torch.nn.Module")
    return module


def _probe(model: SplitModel, name: str, shape: ModelShape) -> None:
    """Run one batch of two; features and logits need the federation's shapes, and the type in which all compute."""
    was_training = model.training
    model.eval()
    values = shape.pair()
    for part, what, needed, setting in (
        (model.extractor, "features", (2, shape.proto_dim), "prototypes.dim"),
        (model.head, "logits", (2, shape.num_classes), "the number of classes"),
    ):
        try:
            with torch.no_grad():
                outcome = part(values)
        except Exception as error:
            fitting = ", ".join(small_networks(shape.input_shape, shape.vocabulary))
            advice = f"; networks for such inputs: {fitting}" if what == "features" else ""
            raise ModelError(
                f"model {name} fails on a batch of shape {tuple(values.shape)}: {one_line(error)}{advice}"
            ) from error
        found = tuple(outcome.shape) if isinstance(outcome, Tensor) else type(outcome).__name__
        if found != needed:
            raise ModelError(
                f"model {name} gives {what} of shape {found} for a batch of 2, but {setting} needs {needed}; "
                "the output of a plain module is its features; for a network that has a head return "
                "tinyproto.SplitModel(extractor, head)"
            )
        if outcome.dtype != torch.float32:
            raise ModelError(
                f"model {name} gives {what} of type {outcome.dtype}, but they must be torch.float32, since prototypes "
                "are; layers inside may compute in other types"
            )
        values = outcome
    model.train(was_training)


def rehearse_training(model: SplitModel, name: str, shape: ModelShape) -> None:
    """Run one forward and backward step in training mode; raise ModelError if a run would fail, or see other features.

    Prototypes are means of the features that the head is given, so it must not change them. What dropout in place does
    in the released code is an option of its own.
    """
    model.train()
    try:
        features = model.extractor(shape.pair())
        version = features._version
        model.head(features).sum().backward()
    except Exception as error:
        raise ModelError(f"model {name} cannot be trained on a batch of two: {one_line(error)}") from error
    if features._version != version and not shape.head_dropout_in_place:
        raise ModelError(f"model {name}: its head changes the features in place; use layers without inplace=True there")
    for key, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ModelError(
                f"model {name} keeps {key} as {type(value).__name__}, which cannot be stored; return a tensor from "
                "get_extra_state"
            )
    model.eval()
    try:
        with torch.no_grad():
            alone = model(shape.pair()[:1])
        found = tuple(alone.features.shape), tuple(alone.logits.shape)
    except Exception as error:
        raise ModelError(f"model {name} fails on a single sample: {one_line(error)}") from error
    if found != ((1, shape.proto_dim), (1, shape.num_classes)):
        raise ModelError(f"model {name} gives features and logits of shape {found[0]} and {found[1]} for one sample")


def check_apart(first: SplitModel, second: SplitModel, name: str) -> None:
    """Raise ModelError if two networks of one factory would train the same tensors; constants may be shared."""
    trained, of_second = ({id(tensor) for tensor in _trained(model)} for model in (first, second))
    if not trained.isdisjoint(of_second):
        raise ModelError(
            f"model {name} returns networks that share tensors, so its clients would train the same; let it return a "
            "copy.deepcopy, or pass the network itself, which is copied for each client"
        )


def _trained(model: SplitModel) -> Iterator[Tensor]:
    """Yield what training changes: parameters, and statistics of normalisation."""
    yield from (parameter for parameter in model.parameters() if parameter.requires_grad)
    for module in model.modules():
        if getattr(module, "track_running_stats", False):
            yield from module.buffers()


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a state_dict, and make the buffers that training made, or gave another size."""
    device = next((parameter.device for parameter in module.parameters()), None)
    for path, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            continue
        for name, held in child._buffers.items():
            given = tensors.get(f"{path}.{name}".lstrip("."))
            if given is not None and (held is None or held.shape != given.shape or not held.is_contiguous()):
                child._buffers[name] = given.detach().to(given.device if device is None else device, copy=True)
    module.load_state_dict(dict(tensors))


CLASSIFIERS = ("classifier.", "fc.")


def load_torchvision(model: SplitModel, state_dict: Mapping[str, Tensor]) -> SplitModel:
    """Load a torchvision network's state_dict into the model's extractor, in place, and return the model.

    torchvision's classifier is ignored: our pooling and head replace it, and the head keeps its weights. The model is
    `mobilenet_v2`, `shufflenet_v2` (in either width) or `efficientnet_b0`, for small images or not.
    """
    given = {name: value for name, value in state_dict.items() if not name.startswith(CLASSIFIERS)}
    found, needed = (
        # Old files lack `num_batches_tracked`, which training ignores.
        {name: tuple(value.shape) for name, value in tensors.items() if not name.endswith("num_batches_tracked")}
        for tensors in (given, model.extractor.state_dict())
    )
    for name in {**needed, **found}:
        if found.get(name) != needed.get(name):
            raise ModelError(
                f"not torchvision's weights for {type(model.extractor).__name__}: {name!r} has shape "
                f"{found.get(name, '(missing)')}, not {needed.get(name, '(unknown)')}"
            )
    model.extractor.load_state_dict(given, strict=False)
    return model
