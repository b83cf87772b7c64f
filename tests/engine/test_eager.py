from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from support import NUM_CLASSES, PROTO_DIM, head_weight, make_client, tiny_net
from tinyproto.algorithms.base import Client
from tinyproto.core.prototypes import Prototypes, class_sums
from tinyproto.core.task import Batch, BatchPlan, ParamGroup, Step, Task, TensorData, batch_plan
from tinyproto.engine.eager import EagerTrainer
from tinyproto.models import ModelEntry, ModelShape, build_model


def mean_square(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
    predicted = modules["net"](batch.inputs)
    loss = (predicted.squeeze(1) - context["target"]).square().mean()
    return Step(loss, loss.detach().unsqueeze(0), observed=batch.inputs)


def line_task(clip: float | None = None, epochs: int = 1, learning_rate: float = 0.1) -> Task:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    data = TensorData(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 1]))
    return Task(
        name="a line",
        key="line",
        modules=nn.ModuleDict({"net": net}),
        groups=[ParamGroup("net", learning_rate, clip)],
        context={"target": torch.tensor(0.0)},
        loss=mean_square,
        part_names=("square",),
        data=data,
        plan=batch_plan(3, 2, epochs, last="keep", shuffle=None),
        num_classes=2,
        seed=0,
    )


def slope(task: Task) -> float:
    weight = task.modules["net"].weight
    assert isinstance(weight, Tensor)
    return float(weight.detach())


def test_steps_are_plain_gradient_descent() -> None:
    task = line_task()
    (result,) = EagerTrainer().fit([task])
    # Batch (1, 2): loss 2.5 w² at w = 2 is 10, gradient 10, so w = 1. Batch (3): loss 9, gradient 18, so w = −0.8.
    assert slope(task) == pytest.approx(-0.8)
    assert result.steps == 2
    assert result.last_epoch() == {"square": pytest.approx((2 * 10 + 9) / 3)}


def test_clipping_bounds_the_gradient_of_its_module() -> None:
    task = line_task(clip=1.0)
    EagerTrainer().fit([task])
    assert slope(task) == pytest.approx(2.0 - 0.1 - 0.1, abs=1e-5)


def test_what_is_observed_is_summed_by_class_over_the_last_epoch() -> None:
    (result,) = EagerTrainer().fit([line_task(epochs=3, learning_rate=0.001)])
    assert result.observed is not None
    assert result.observed.sums.tolist() == [[1.0], [5.0]]
    assert result.observed.counts.tolist() == [1, 2]
    assert result.parts.shape == (3, 1)
    assert result.parts[2, 0] < result.parts[0, 0]


def test_an_error_says_whom_it_hit() -> None:
    task = line_task()
    broken = Task(**{**task.__dict__, "context": {}})
    with pytest.raises(KeyError) as caught:
        EagerTrainer().fit([broken])
    assert caught.value.__notes__ == ["while training a line"]


def logits_task(client: Client, plan: BatchPlan, seed: int = 0) -> Task:
    """Return a task that pulls all logits to zero."""
    return Task(
        name="client 0",
        key="k",
        modules=nn.ModuleDict({"model": client.model}),
        groups=[ParamGroup("model", 0.1)],
        context={},
        loss=lambda modules, batch, _: Step(modules["model"](batch.inputs).logits.square().mean(), torch.zeros(1)),
        part_names=("zero",),
        data=client.train,
        plan=plan,
        num_classes=NUM_CLASSES,
        seed=seed,
    )


def test_a_single_sample_trains_with_normalisation_in_eval_mode() -> None:
    client = make_client([1, 0, 0, 0])
    norm = next(module for module in client.model.modules() if isinstance(module, nn.BatchNorm1d))
    task = logits_task(client, batch_plan(1, 16, 1, last="join", shuffle=None))
    before = head_weight(client).clone()
    EagerTrainer().fit([task])
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 0
    assert not torch.equal(before, head_weight(client))


def test_only_the_batch_of_one_does_without_batch_statistics() -> None:
    client = make_client([5, 4, 0, 0])
    norm = next(module for module in client.model.modules() if isinstance(module, nn.BatchNorm1d))
    task = logits_task(client, batch_plan(9, 4, 1, last="keep", shuffle=None))
    EagerTrainer().fit([task])
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 2


def test_features_come_in_eval_mode_whatever_the_batch_size() -> None:
    client = make_client([5, 5, 5, 5])
    client.model.train()
    small, large = EagerTrainer(feature_batch=3), EagerTrainer()
    (in_parts,), (at_once,) = (trainer.features([client.model], [client.train]) for trainer in (small, large))
    torch.testing.assert_close(in_parts, at_once)
    assert at_once.shape == (20, PROTO_DIM)
    assert not at_once.requires_grad
    client.model.eval()
    torch.testing.assert_close(at_once, client.model(client.train.batch(slice(None)).inputs).features.detach())


def test_no_samples_give_no_features_of_the_right_width() -> None:
    empty = TensorData(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64))
    (features,) = EagerTrainer().features([tiny_net((1, 6, 6), PROTO_DIM, NUM_CLASSES)], [empty])
    assert features.shape == (0, PROTO_DIM)
    assert class_sums(features, empty.labels, NUM_CLASSES).counts.tolist() == [0] * NUM_CLASSES


def test_a_plan_without_batches_leaves_no_trace() -> None:
    task = line_task()
    nothing = Task(**{**task.__dict__, "plan": batch_plan(0, 2, 1, last="join", shuffle=None)})
    (result,) = EagerTrainer().fit([nothing])
    assert result.steps == 0
    assert result.last_epoch() == {}
    assert slope(task) == 2.0


def test_dropout_follows_the_task_s_seed() -> None:
    def trained(seed: int) -> Tensor:
        client = make_client([8, 8, 8, 8])
        task = logits_task(client, batch_plan(32, 8, 1, last="join", shuffle=None), seed)
        EagerTrainer().fit([task])
        return head_weight(client)

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


class Viewing(nn.Module):
    """A network like those of users: `view` needs a feature map with channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        maps: Tensor = self.convolution(inputs)
        return maps.view(len(inputs), -1)[:, :PROTO_DIM]


def colourful_client(entry: ModelEntry, size: int = 16) -> Client:
    shape = ModelShape((3, size, size), PROTO_DIM, NUM_CLASSES)
    labels = torch.arange(12) % NUM_CLASSES
    pixels = torch.randint(0, 256, (12, *shape.input_shape), generator=torch.Generator().manual_seed(0))
    data = TensorData(pixels.to(torch.uint8), labels, 2 / 255, -1.0)
    absent = Prototypes.absent(NUM_CLASSES, PROTO_DIM)
    return Client(0, "net", build_model(entry, shape, 0), data, data, torch.bincount(labels), absent)


def convolutions(client: Client) -> list[nn.Conv2d]:
    return [layer for layer in client.model.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1)]


def channels_come_last(client: Client) -> bool:
    layers = [layer for layer in convolutions(client) if layer.in_channels > 1 and layer.groups == 1]
    return all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in layers)


@pytest.mark.parametrize(
    ("name", "size"), [("small_cnn_a", 8), ("small_cnn_a", 16), ("small_cnn_d", 8), ("resnet8", 16)]
)
def test_channels_come_last_in_our_networks_to_the_same_numbers(name: str, size: int) -> None:
    laid_out, plain = colourful_client(name, size), colourful_client(name, size)
    plain.model.any_layout = False
    plan = batch_plan(12, 4, 1, last="join", shuffle=None)
    for client in (laid_out, plain):
        EagerTrainer().fit([logits_task(client, plan)])
    assert channels_come_last(laid_out)
    assert not channels_come_last(plain)
    for one, other in zip(laid_out.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_features_of_a_fresh_network_have_the_bits_of_one_that_was_trained_and_put_back() -> None:
    """A resumed run evaluates the same bits that the interrupted run would have evaluated."""
    trained, fresh = colourful_client("small_cnn_a"), colourful_client("small_cnn_a")
    EagerTrainer().fit([logits_task(trained, batch_plan(12, 4, 1, last="join", shuffle=None))])
    fresh.model.load_state_dict({name: value.contiguous() for name, value in trained.model.state_dict().items()})
    one, other = EagerTrainer().features([trained.model, fresh.model], [trained.train, fresh.train])
    assert torch.equal(one, other)


def test_a_depthwise_convolution_has_the_strides_of_channels_last_so_that_maps_of_one_pixel_do_too() -> None:
    client, plain = colourful_client("mobilenet_v2"), colourful_client("mobilenet_v2")
    plain.model.any_layout = False
    strides: list[tuple[int, ...]] = []
    for layer in convolutions(client):
        layer.register_forward_hook(lambda _module, _inputs, maps: strides.append(maps.stride()))
    (found,) = EagerTrainer().features([client.model], [client.train])
    (expected,) = EagerTrainer().features([plain.model], [plain.train])
    torch.testing.assert_close(found, expected)
    for layer, (_, channel, _, column) in zip(convolutions(client), strides, strict=True):
        assert (layer.weight.stride(1), channel, column) == (1, 1, layer.out_channels)


def test_users_networks_keep_their_layout() -> None:
    users = colourful_client(lambda: Viewing())
    EagerTrainer().fit([logits_task(users, batch_plan(12, 4, 1, last="join", shuffle=None))])
    assert not channels_come_last(users)
    assert EagerTrainer().features([users.model], [users.train])[0].shape == (12, PROTO_DIM)


def test_large_images_go_through_a_network_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyproto.engine.eager.FEATURE_PIXELS", 5 * 16 * 16)
    client = colourful_client("small_cnn_a")
    seen: list[int] = []
    client.model.extractor.register_forward_hook(lambda _module, inputs, _output: seen.append(len(inputs[0])))
    EagerTrainer().features([client.model], [client.train])
    assert seen == [5, 5, 2]


def test_a_gradient_left_behind_is_not_used() -> None:
    task, clean = line_task(), line_task()
    weight = task.modules["net"].weight
    assert isinstance(weight, nn.Parameter)
    weight.grad = torch.full_like(weight, 1000.0)
    EagerTrainer().fit([task, clean])
    assert slope(task) == slope(clean)


def test_a_module_that_the_loss_does_not_use_stays_as_it_is() -> None:
    task = line_task()
    spare = nn.Linear(2, 2)
    before = spare.weight.detach().clone()
    modules = nn.ModuleDict({"net": task.modules["net"], "spare": spare})
    groups = [*task.groups, ParamGroup("spare", 0.1)]
    EagerTrainer().fit([Task(**{**task.__dict__, "modules": modules, "groups": groups})])
    assert torch.equal(spare.weight, before)
    assert slope(task) == pytest.approx(-0.8)
