from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import same_tensors
from tinyproto.errors import ModelError
from tinyproto.models import (
    CNNS_1D,
    NETWORKS,
    TEXT,
    ModelEntry,
    ModelShape,
    SplitModel,
    build_model,
    check_apart,
    entry_name,
    rehearse_training,
)
from tinyproto.models.build import load_weights

SHAPE = ModelShape(input_shape=(1, 8, 8), proto_dim=12, num_classes=5)
IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def extractor(width: int = 12) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which counts as a place for packages; sys.path is put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_registered_network_builds_from_its_name(name: str) -> None:
    shape = ModelShape(input_shape=(3, 32, 32), proto_dim=12, num_classes=5)
    if name in CNNS_1D:
        shape = replace(shape, input_shape=(3, 32))
    if name in TEXT:
        shape = replace(shape, input_shape=(32,), vocabulary=9)
    output = build_model(name, shape, seed=0).eval()(shape.pair())
    assert output.features.shape == (2, 12)
    assert output.logits.shape == (2, 5)


def test_equal_seeds_draw_equal_weights_and_other_seeds_others() -> None:
    first, again, other = (build_model("small_cnn_a", SHAPE, seed) for seed in (1, 1, 2))
    assert same_weights(first, again)
    assert not same_weights(first, other)


def lazily(proto_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(proto_dim), nn.LazyBatchNorm1d(affine=False), nn.ReLU())


@pytest.mark.parametrize("check", [True, False])
def test_layers_that_learn_their_size_from_the_first_batch_draw_from_the_seed_too(check: bool) -> None:
    first, again, other = (build_model(lazily, SHAPE, seed, check=check) for seed in (1, 1, 2))
    assert same_weights(first, again)
    assert not same_weights(first, other)


def test_without_a_check_a_network_has_the_same_weights_and_sees_no_batch() -> None:
    assert same_weights(build_model("small_cnn_a", SHAPE, 1), build_model("small_cnn_a", SHAPE, 1, check=False))
    assert build_model(extractor(30), SHAPE, seed=0, check=False).extractor(IMAGES).shape == (3, 30)


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build_model("small_cnn_b", SHAPE, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_name_is_an_error_with_the_nearest_and_the_way_out() -> None:
    with pytest.raises(ModelError, match=r"'smal_cnn_b', did you mean 'small_cnn_b'.*package\.module:factory"):
        build_model("smal_cnn_b", SHAPE, seed=0)


def test_a_dotted_path_is_found_in_the_current_folder(working_folder: Path) -> None:
    (working_folder / "nets_of_a_user.py").write_text(
        "from torch import nn\ndef make(proto_dim):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, proto_dim))\n"
    )
    model = build_model("nets_of_a_user:make", SHAPE, seed=0)
    assert model(IMAGES).features.shape == (3, 12)


def test_a_dotted_path_that_leads_nowhere_is_an_error_that_says_where_it_ends(working_folder: Path) -> None:
    (working_folder / "other_nets_of_a_user.py").write_text("def make_net():\n    pass\n")
    with pytest.raises(ModelError, match="importing 'no_such_package' failed with ModuleNotFoundError"):
        build_model("no_such_package:make", SHAPE, seed=0)
    with pytest.raises(ModelError, match="has no 'make_nett', did you mean 'make_net'"):
        build_model("other_nets_of_a_user:make_nett", SHAPE, seed=0)


def test_a_factory_is_given_exactly_what_it_asks_for() -> None:
    asked: list[dict[str, Any]] = []

    def of_width(proto_dim: int) -> nn.Module:
        asked.append({"proto_dim": proto_dim})
        return extractor(proto_dim)

    def of_anything(**given: Any) -> nn.Module:
        asked.append(given)
        return extractor()

    def of_nothing() -> nn.Module:
        asked.append({})
        return extractor()

    for factory in (of_width, of_anything, of_nothing):
        build_model(factory, SHAPE, seed=0)
    everything = {"input_shape": (1, 8, 8), "proto_dim": 12, "num_classes": 5, "head_dropout": 0.0}
    assert asked == [{"proto_dim": 12}, everything, {}]
    build_model(of_anything, replace(SHAPE, head_dropout_in_place=True), seed=0)
    assert asked[-1] == {**everything, "head_dropout_in_place": True}


def test_a_module_that_ends_in_features_gets_a_linear_head_over_the_classes() -> None:
    model = build_model(extractor, SHAPE, seed=0)
    assert isinstance(model.head, nn.Linear)
    assert (model.head.in_features, model.head.out_features) == (12, 5)
    assert model.head.bias is not None


def test_a_split_model_keeps_the_head_it_has() -> None:
    head = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, 5))
    model = build_model(lambda: SplitModel(extractor(), head), SHAPE, seed=0)
    assert model.head is head


def test_a_module_object_is_copied_with_the_weights_it_has() -> None:
    mine = extractor()
    before = weights(mine)
    first, second = (build_model(mine, SHAPE, seed) for seed in (0, 1))
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
    assert same_weights(mine, second.extractor)
    assert not same_weights(mine, first.extractor)


def test_checking_a_network_changes_neither_its_mode_nor_its_statistics() -> None:
    normalised = SplitModel(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 12)), nn.Linear(12, 5))
    for mode in (True, False):
        model = build_model(normalised.train(mode), SHAPE, seed=0)
        assert model.extractor.training is mode
        assert same_weights(normalised, model)


def test_a_factory_that_fails_is_named_with_its_reason() -> None:
    def careless() -> nn.Module:
        raise KeyError("depth")

    with pytest.raises(ModelError, match="careless: its factory failed with KeyError: 'depth'"):
        build_model(careless, SHAPE, seed=0)


def test_the_reason_of_a_failing_factory_stays_on_one_line() -> None:
    def talkative() -> nn.Module:
        raise RuntimeError("Error(s) in loading state_dict:\n\tMissing key(s)\n\tUnexpected key(s)")

    with pytest.raises(ModelError) as caught:
        build_model(talkative, SHAPE, seed=0)
    assert "\n" not in str(caught.value)


def test_a_factory_has_to_return_a_module() -> None:
    factory: Any = dict
    with pytest.raises(ModelError, match=r"dict: its factory returned dict, not a torch\.nn\.Module"):
        build_model(factory, SHAPE, seed=0)


@pytest.mark.parametrize("entry", [extractor(30), lambda: SplitModel(extractor(30), nn.Linear(30, 5))])
def test_features_of_another_width_are_an_error_that_names_the_setting(entry: ModelEntry) -> None:
    with pytest.raises(ModelError, match=r"features of shape \(2, 30\).*prototypes\.dim needs \(2, 12\)"):
        build_model(entry, SHAPE, seed=0)


def test_logits_over_other_classes_are_an_error_with_both_shapes() -> None:
    with pytest.raises(ModelError, match=r"logits of shape \(2, 9\).*number of classes needs \(2, 5\)"):
        build_model(SplitModel(extractor(), nn.Linear(12, 9)), SHAPE, seed=0)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_layers_may_compute_in_another_type_but_features_and_logits_may_not(kind: torch.dtype) -> None:
    class Inside(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer.to(kind)

        def forward(self, values: Tensor) -> Tensor:
            found: Tensor = self.layer(values.to(kind))
            return found

    class Whole(Inside):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values).float()

    head = nn.Linear(12, 5)
    whole = build_model(SplitModel(Whole(extractor()), Whole(head)), SHAPE, seed=0)
    assert {parameter.dtype for parameter in whole.parameters()} == {kind}
    words = rf"model SplitModel gives (features|logits) of type {kind}, but they must be torch\.float32"
    with pytest.raises(ModelError, match=words):
        build_model(SplitModel(Inside(extractor()), head), SHAPE, seed=0)
    with pytest.raises(ModelError, match=words):
        build_model(SplitModel(extractor(), Inside(head)), SHAPE, seed=0)


def test_a_network_for_other_images_is_an_error_with_the_shape_of_ours() -> None:
    with pytest.raises(ModelError, match=r"model Sequential fails on a batch of shape \(2, 1, 8, 8\)"):
        build_model(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(12)), SHAPE, seed=0)


@pytest.mark.parametrize(
    ("entry", "name"),
    [("small_cnn_a", "small_cnn_a"), ("pkg.nets:make", "pkg.nets:make"), (extractor, "extractor"), (nn.ReLU(), "ReLU")],
)
def test_an_entry_is_called_by_what_a_user_would_call_it(entry: ModelEntry, name: str) -> None:
    assert entry_name(entry) == name


@pytest.mark.parametrize("layer", [nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True)])
def test_a_head_that_changes_the_features_is_refused(layer: nn.Module) -> None:
    """Prototypes are means of features as they were, so classes would be compared with others."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    model = SplitModel(linear, nn.Sequential(layer, nn.Linear(12, 5)))
    with pytest.raises(ModelError, match="model mine: its head changes the features in place"):
        rehearse_training(model, "mine", SHAPE)
    rehearse_training(model, "mine", replace(SHAPE, head_dropout_in_place=True))
    rehearse_training(SplitModel(linear, nn.Sequential(nn.ReLU(), nn.Linear(12, 5))), "mine", SHAPE)


class Keeping(nn.Linear):
    def __init__(self, kept: object) -> None:
        super().__init__(12, 5)
        self.kept = kept

    def get_extra_state(self) -> object:
        return self.kept

    def set_extra_state(self, state: object) -> None:
        self.kept = state


def test_state_that_cannot_be_stored_is_refused_before_the_run() -> None:
    rehearse_training(SplitModel(extractor(), Keeping(torch.zeros(1))), "mine", SHAPE)
    with pytest.raises(ModelError, match=r"model mine keeps head\._extra_state as dict"):
        rehearse_training(SplitModel(extractor(), Keeping({"steps": 1})), "mine", SHAPE)


class Squeezing(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).squeeze()


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (Squeezing(12, 5), r"\(1, 12\) and \(5,\) for one sample"),
        (nn.Sequential(nn.BatchNorm1d(12, track_running_stats=False), nn.Linear(12, 5)), "fails on a single sample"),
    ],
)
def test_a_network_that_cannot_classify_a_single_sample_is_refused(head: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        rehearse_training(SplitModel(extractor(), head), "mine", SHAPE)


def test_networks_of_a_factory_may_share_only_what_no_client_trains() -> None:
    trunk, frozen = nn.Linear(64, 12), nn.Linear(64, 12).requires_grad_(False)

    def around(layer: nn.Module) -> SplitModel:
        return SplitModel(nn.Sequential(nn.Flatten(), layer), nn.Linear(12, 5))

    check_apart(around(frozen), around(frozen), "mine")
    check_apart(around(trunk), around(copy.deepcopy(trunk)), "mine")
    with pytest.raises(ModelError, match="model mine returns networks that share tensors"):
        check_apart(around(trunk), around(trunk), "mine")
    constant = torch.ones(64)
    first, second = around(frozen), around(frozen)
    for model in (first, second):
        model.extractor.register_buffer("constant", constant)
    check_apart(first, second, "mine")
    norm = nn.BatchNorm1d(64).requires_grad_(False)  # training changes its statistics
    with pytest.raises(ModelError, match="share tensors"):
        check_apart(around(nn.Sequential(norm, frozen)), around(nn.Sequential(norm, frozen)), "mine")


def test_buffers_that_training_made_or_resized_are_loaded() -> None:
    class Buffers(nn.Module):
        made: Tensor

        def __init__(self, made: Tensor | None, grown: Tensor) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("made", made)
            self.register_buffer("grown", grown)
            self.register_buffer("spread", torch.ones(1).expand(3))

    trained = Buffers(torch.arange(3.0), torch.ones(4, 2))
    trained.spread = torch.tensor([1.0, 2.0, 3.0])
    fresh = Buffers(None, torch.zeros(0, 2))
    kept = trained.state_dict()
    load_weights(fresh, kept)
    assert same_tensors(fresh.state_dict(), kept)
    fresh.made.zero_()
    assert kept["made"].any()  # which is a tensor of its own
    with pytest.raises(RuntimeError, match="size mismatch for layer"):
        load_weights(fresh, kept | {"layer.weight": torch.zeros(3, 2)})
