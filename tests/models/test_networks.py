"""The networks from the literature: their sizes and names, and that every one of them trains in a federation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

import tinyproto as tp
from tinyproto.core.streams import global_randomness
from tinyproto.models import NETWORKS, PUBLISHED, ModelShape, SplitModel, build_model
from tinyproto.models.count import count_parameters, measure
from tinyproto.models.efficientnet import EfficientNetB0, StochasticDepth, efficientnet_b0
from tinyproto.models.mobilenet_v2 import MobileNetV2
from tinyproto.models.resnet8 import resnet8
from tinyproto.models.shufflenet_v2 import X0_5, X1_0, ShuffleNetV2, shuffle_channels
from tinyproto.models.split import DropoutLinear

SMALL = [f"{name}_small_images" for name in PUBLISHED]
RGB_32, RGB_64, GREY_32 = (3, 32, 32), (3, 64, 64), (1, 32, 32)
DIM, CLASSES = 500, 10


def noise(count: int, image: tuple[int, int, int] = RGB_32, seed: int = 1) -> Tensor:
    return torch.randn(count, *image, generator=torch.Generator().manual_seed(seed))


@cache
def network(name: str, image: tuple[int, int, int] = RGB_32, dim: int = DIM) -> SplitModel:
    """In eval mode, with statistics of real activations; shared by tests that only look at it."""
    model = build_model(name, ModelShape(image, dim, CLASSES), seed=0).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain mean over all batches
    with torch.no_grad(), global_randomness(1):
        model(noise(8, image, seed=0))
    return model.eval()


@cache
def on_meta(name: str, num_classes: int = CLASSES) -> SplitModel:
    """Shapes without values."""
    with torch.device("meta"):
        return build_model(name, ModelShape(RGB_32, DIM, num_classes), seed=0)


def frozen_normalisation(model: nn.Module) -> nn.Module:
    """Training mode, but what is normalised does not depend on the batch: all that differs from eval is chance."""
    for module in model.train().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


# Sizes and names


@pytest.mark.parametrize(
    ("name", "parameters", "width"),
    [
        ("resnet8", 1_232_704, 256),
        ("mobilenet_v2", 2_223_872, 1280),
        ("shufflenet_v2", 1_253_604, 1024),
        ("efficientnet_b0", 4_007_548, 1280),
        ("shufflenet_v2_x0_5", 341_792, 1024),
    ],
)
@pytest.mark.parametrize("variant", ["", "_small_images"])
def test_extractors_have_exactly_the_papers_parameters(name: str, variant: str, parameters: int, width: int) -> None:
    size = measure(on_meta(f"{name}{variant}"), RGB_32)
    assert (size.extractor_parameters, size.feature_width) == (parameters, width)


@pytest.mark.parametrize("name", list(PUBLISHED))
@pytest.mark.parametrize(("num_classes", "parameters"), [(10, 5_010), (100, 50_100)])
def test_the_head_is_one_linear_layer_with_bias(name: str, num_classes: int, parameters: int) -> None:
    head = on_meta(name, num_classes).head
    assert type(head) is nn.Linear
    assert count_parameters(head) == parameters


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "mobilenet_v2": lambda: MobileNetV2(nn.Linear(1280, 1000)),
    "shufflenet_v2": lambda: ShuffleNetV2(X1_0, nn.Linear(1024, 1000)),
    "shufflenet_v2_x0_5": lambda: ShuffleNetV2(X0_5, nn.Linear(1024, 1000)),
    "efficientnet_b0": lambda: EfficientNetB0(nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))),
}


def whole(name: str) -> nn.Module:
    """Return the network with a classifier for 1 000 classes, as torchvision has it."""
    with torch.device("meta"):
        return WHOLE[name]()


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "gigamacs"),
    [
        ("mobilenet_v2", 3_504_872, 314, 0.301),
        ("shufflenet_v2", 2_278_604, 338, 0.145),
        ("shufflenet_v2_x0_5", 1_366_792, 338, 0.040),
        ("efficientnet_b0", 5_288_548, 360, 0.386),
    ],
)
def test_with_a_classifier_they_are_as_large_as_torchvision_says(
    name: str, parameters: int, tensors: int, gigamacs: float
) -> None:
    model = whole(name)
    assert count_parameters(model) == parameters
    assert len(model.state_dict()) == tensors
    macs = measure(SplitModel(model, nn.Identity()), (3, 224, 224)).macs
    assert round(macs / 1e9, 3) == gigamacs


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        (
            "mobilenet_v2",
            {
                "features.0.0.weight": (32, 3, 3, 3),
                "features.0.1.running_var": (32,),
                "features.1.conv.0.0.weight": (32, 1, 3, 3),
                "features.1.conv.1.weight": (16, 32, 1, 1),
                "features.1.conv.2.bias": (16,),
                "features.2.conv.0.0.weight": (96, 16, 1, 1),
                "features.2.conv.1.0.weight": (96, 1, 3, 3),
                "features.17.conv.2.weight": (320, 960, 1, 1),
                "features.17.conv.3.weight": (320,),
                "features.18.0.weight": (1280, 320, 1, 1),
                "classifier.1.weight": (1000, 1280),
            },
        ),
        (
            "shufflenet_v2",
            {
                "conv1.0.weight": (24, 3, 3, 3),
                "stage2.0.branch1.0.weight": (24, 1, 3, 3),
                "stage2.0.branch1.2.weight": (58, 24, 1, 1),
                "stage2.0.branch2.0.weight": (58, 24, 1, 1),
                "stage2.1.branch2.0.weight": (58, 58, 1, 1),
                "stage3.7.branch2.3.weight": (116, 1, 3, 3),
                "stage4.3.branch2.6.running_mean": (232,),
                "conv5.0.weight": (1024, 464, 1, 1),
                "fc.bias": (1000,),
            },
        ),
        ("shufflenet_v2_x0_5", {"stage4.0.branch1.2.weight": (96, 96, 1, 1), "conv5.0.weight": (1024, 192, 1, 1)}),
        (
            "efficientnet_b0",
            {
                "features.0.0.weight": (32, 3, 3, 3),
                "features.1.0.block.0.0.weight": (32, 1, 3, 3),
                "features.1.0.block.1.fc1.weight": (8, 32, 1, 1),
                "features.1.0.block.2.0.weight": (16, 32, 1, 1),
                "features.2.0.block.2.fc1.weight": (4, 96, 1, 1),
                "features.2.0.block.2.fc2.bias": (96,),
                "features.3.1.block.1.0.weight": (240, 1, 5, 5),
                "features.6.3.block.3.1.weight": (192,),
                "features.7.0.block.3.0.weight": (320, 1152, 1, 1),
                "features.8.0.weight": (1280, 320, 1, 1),
                "classifier.1.bias": (1000,),
            },
        ),
    ],
)
def test_parameters_are_named_and_shaped_as_torchvisions(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    own = {key: tuple(value.shape) for key, value in whole(name).state_dict().items()}
    assert {key: own.get(key) for key in shapes} == shapes


def test_convolutions_are_drawn_by_their_fan_out_and_biases_are_zero() -> None:
    with global_randomness(0):
        convolution = resnet8(RGB_32, DIM, CLASSES).extractor.get_submodule("layer3.0.conv2")
        excitation = efficientnet_b0(RGB_32, DIM, CLASSES).extractor.get_submodule("features.5.1.block.2.fc1")
    assert isinstance(convolution, nn.Conv2d)
    assert float(convolution.weight.detach().std()) == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
    assert isinstance(excitation, nn.Conv2d)
    assert excitation.bias is not None
    assert not excitation.bias.any()


# Running and training


@pytest.mark.parametrize("image", [RGB_32, RGB_64, GREY_32])
@pytest.mark.parametrize("name", list(PUBLISHED))
def test_any_image_becomes_d_features_and_k_logits(name: str, image: tuple[int, int, int]) -> None:
    with torch.no_grad():
        features, logits = network(name, image)(noise(2, image))
    assert (features.shape, logits.shape) == ((2, DIM), (2, CLASSES))
    assert features.isfinite().all()


@pytest.mark.parametrize(("name", "width"), [("resnet8", 256), ("shufflenet_v2_x0_5", 1024)])
def test_a_width_of_ones_own_is_pooled_to_any_other(name: str, width: int) -> None:
    images = noise(2)
    with torch.no_grad():
        unpooled = network(name, dim=width).extractor(images)
        for dim in (1, 37, 1500):
            pooled = network(name, dim=dim).extractor(images)
            torch.testing.assert_close(pooled, functional.adaptive_avg_pool1d(unpooled, dim))


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_nothing_is_left_to_chance_in_eval_mode(name: str) -> None:
    model, images = copy.deepcopy(network(name)).double(), noise(3).double()
    with torch.no_grad():
        first, again, alone = model(images), model(images), model(images[:1])
    assert torch.equal(first.features, again.features)
    torch.testing.assert_close(alone.features, first.features[:1])


@pytest.mark.parametrize("name", [*PUBLISHED, *SMALL])
def test_a_training_step_reaches_every_parameter(name: str) -> None:
    with global_randomness(2):
        model = NETWORKS[name](input_shape=RGB_32, proto_dim=DIM, num_classes=CLASSES).train()
        features, logits = model(noise(8))
        loss: Tensor = functional.cross_entropy(logits, torch.arange(8)) + features.square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
    untouched = [key for key, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert untouched == []


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_batch_of_two_can_be_trained_on(name: str) -> None:
    with global_randomness(3):
        model = NETWORKS[name](input_shape=GREY_32, proto_dim=20, num_classes=CLASSES).train()
        loss: Tensor = functional.cross_entropy(model(noise(2, GREY_32)).logits, torch.tensor([0, 1]))
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [value.grad for value in model.parameters()]
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_clients_of_one_network_can_be_stacked(name: str) -> None:
    shape = ModelShape(RGB_32, 20, CLASSES, head_dropout=0.2)
    models: list[nn.Module] = [build_model(name, shape, seed).double().train() for seed in (0, 1)]
    parameters, buffers = stack_module_state(models)
    images, labels = noise(8).double().reshape(2, 4, *RGB_32), torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])

    def loss(parameters: Any, buffers: Any, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(models[0], (parameters, buffers), (images,)).logits, labels)

    gradients = vmap(grad(loss), randomness="different")(parameters, buffers, images, labels)
    if name in ("mobilenet_v2", "efficientnet_b0"):  # theirs depend on what was dropped
        assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
        return
    for index, model in enumerate(models):
        alone = grad(loss)(dict(model.named_parameters()), dict(model.named_buffers()), images[index], labels[index])
        for key, gradient in alone.items():
            torch.testing.assert_close(gradients[key][index], gradient, rtol=1e-6, atol=1e-9)


def test_a_federation_mixes_them_by_name() -> None:
    names = ["resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0_small_images"]
    pixels = np.random.default_rng(0).integers(0, 256, (48, 3, 16, 16), dtype=np.uint8)
    data = tp.data.from_arrays(pixels, np.arange(48) % 3)
    result = tp.simulate(data=data, models=names, num_clients=4, alpha=100.0, rounds=1, proto_dim=30)
    sizes = [count_parameters(client.model.extractor) for client in result.clients]
    assert sizes == [1_232_704, 2_223_872, 1_253_604, 4_007_548]
    assert result.accuracy["last"]["global"] is not None


# What each network has of its own


def test_shuffling_interleaves_the_halves_of_the_channels() -> None:
    values = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert shuffle_channels(values).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_mobilenet_drops_a_fifth_of_its_own_features_before_they_are_pooled() -> None:
    with global_randomness(4):
        extractor = copy.deepcopy(
            network("mobilenet_v2", dim=1280).extractor
        )  # as wide as its own: nothing is averaged
        with torch.no_grad():
            complete = extractor(noise(4))
            dropped = frozen_normalisation(extractor)(noise(4))
    active = complete > 0
    kept = active & (dropped != 0)
    torch.testing.assert_close(dropped[kept], complete[kept] / 0.8)
    assert float(kept.sum() / active.sum()) == pytest.approx(0.8, abs=0.05)


def test_stochastic_depth_drops_whole_samples_and_keeps_the_mean() -> None:
    layer, values = StochasticDepth(0.25), torch.ones(4000, 2, 3, 3)
    with global_randomness(5):
        seen = layer.train()(values)
    by_sample = seen.flatten(1)
    assert torch.equal(by_sample.amin(1), by_sample.amax(1))
    assert sorted(set(by_sample[:, 0].tolist())) == [0.0, pytest.approx(4 / 3)]
    assert float(seen.mean()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(layer.eval()(values), values)


def test_the_deeper_a_block_the_likelier_it_is_skipped() -> None:
    chances = [layer.dropped for layer in network("efficientnet_b0").modules() if isinstance(layer, StochasticDepth)]
    assert chances == pytest.approx([0.2 * depth / 16 for depth in range(16)])


def test_the_head_s_dropout_leaves_the_features_whole_and_the_names_plain() -> None:
    with global_randomness(6):
        head = efficientnet_b0(RGB_32, 50, CLASSES, head_dropout=0.2).head
        plain = nn.Linear(50, CLASSES)
        head.load_state_dict(plain.state_dict())
        features = torch.rand(3, 50) + 1
        before = features.clone()
        trained, evaluated = head.train()(features), head.eval()(features)
    assert torch.equal(features, before)
    assert not torch.allclose(trained, evaluated)
    assert torch.equal(evaluated, plain(features))


def test_dropout_in_place_drops_the_features_too_and_only_while_training() -> None:
    with global_randomness(6):
        model = efficientnet_b0(RGB_32, 50, CLASSES, head_dropout=0.2, head_dropout_in_place=True)
        plain = efficientnet_b0(RGB_32, 50, CLASSES, head_dropout=0.2)
        plain.load_state_dict(model.state_dict())  # the same names
        seen = model.train()(noise(64))
        assert torch.equal(seen.logits, model.head(seen.features))  # nothing is dropped after the features
        assert float((seen.features == 0).float().mean()) == pytest.approx(0.2, abs=0.02)
        assert not bool((plain.train()(noise(64)).features == 0).any())
        model.load_state_dict(plain.state_dict())  # each has seen other batches
        evaluated, expected = model.eval()(noise(4)), plain.eval()(noise(4))
    assert torch.equal(evaluated.features, expected.features)
    assert torch.equal(evaluated.logits, expected.logits)


def test_a_loss_of_logits_alone_does_not_see_whether_dropout_is_in_place() -> None:
    gradients = []
    for in_place in (False, True):
        with global_randomness(9):
            model = efficientnet_b0(RGB_32, 50, CLASSES, head_dropout=0.5, head_dropout_in_place=in_place).train()
            loss = functional.cross_entropy(model(noise(8)).logits, torch.arange(8) % CLASSES)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert all(torch.equal(mine, other) for mine, other in zip(*gradients, strict=True))


def test_the_gradient_of_dropout_in_place_is_that_of_overwritten_features() -> None:
    with global_randomness(7):
        model = efficientnet_b0(RGB_32, 50, CLASSES, head_dropout=0.5, head_dropout_in_place=True).train()
        for layer in model.modules():
            if isinstance(layer, StochasticDepth):
                layer.dropped = 0.0
        trunk = copy.deepcopy(model.extractor)
        for layer in trunk.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        images = noise(4)
    with global_randomness(8):
        found = model(images)
    features = trunk(images)
    kept = (found.features != 0).float() / 0.5
    torch.testing.assert_close(found.features, features * kept)
    pulls = [(each.square().sum()) for each in (found.features, features * kept)]
    weights = [next(part.parameters()) for part in (model.extractor, trunk)]
    mine, other = (torch.autograd.grad(pull, weight)[0] for pull, weight in zip(pulls, weights, strict=True))
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("preset", "dropout"), [("sound", None), ("reference", 0.2), ("paper", 0.2), ("published", None)]
)
def test_a_preset_decides_on_efficientnets_head(preset: str, dropout: float | None) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 3, 16, 16), dtype=np.uint8)
    result = tp.simulate(
        data=tp.data.from_arrays(pixels, np.arange(24) % 2), models=["efficientnet_b0", "small_cnn_a"], num_clients=2,
        alpha=100.0, rounds=1, preset=preset, algorithm="local", proto_dim=10, settings={"train": {"batch_size": 4}},
    )  # fmt: skip
    head = result.clients[0].model.head
    assert (head.dropout if isinstance(head, DropoutLinear) else None) == dropout
    layers = result.clients[0].model.extractor.modules()
    assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.2] * (preset == "published")
    assert type(result.clients[1].model.head) is nn.Linear


@pytest.mark.parametrize(
    ("name", "last", "published", "small"),
    [
        ("resnet8", "layer3", 2, 8),
        ("mobilenet_v2", "features", 1, 2),
        ("shufflenet_v2", "conv5", 1, 2),
        ("efficientnet_b0", "features", 1, 2),
    ],
)
def test_the_variant_for_small_images_keeps_more_of_the_map(name: str, last: str, published: int, small: int) -> None:
    sides = []
    for variant in ("", "_small_images"):
        model = on_meta(f"{name}{variant}").eval()
        layer = model.extractor.get_submodule(last)
        handle = layer.register_forward_hook(lambda module, inputs, output: sides.append(output.shape[-1]))
        model(torch.zeros(1, *RGB_32, device="meta"))
        handle.remove()
    assert sides == [published, small]


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_the_variant_for_small_images_takes_the_published_one_s_weights(name: str) -> None:
    published, small = (on_meta(entry).state_dict() for entry in (name, f"{name}_small_images"))
    assert {key: value.shape for key, value in published.items()} == {key: value.shape for key, value in small.items()}
