"""A network as it is, for a stack of one: any network can be captured, not only those with a stacked form."""

from __future__ import annotations

import copy

from torch import Tensor
from torch.func import functional_call

from tinyproto.core.task import State
from tinyproto.engine.training.eager import normalisation_layers
from tinyproto.models.split import Output, SplitModel


class WholeModel:
    """A SplitModel with weights from outside, (1, …) each."""

    alone = True  # it may use cuDNN
    on_demand = True

    def __init__(self, model: SplitModel) -> None:
        self.model = copy.deepcopy(model)
        self.normalisation = normalisation_layers(self.model)

    def features(self, inputs: Tensor, state: State, *, normalise: bool, training: bool) -> Tensor:
        """(1, B, …) to (1, B, d)."""
        self._set(normalise, training)
        own = {
            name.removeprefix("extractor."): value.squeeze(0) for name, value in state.items() if "extractor." in name
        }
        features: Tensor = functional_call(self.model.extractor, own, (inputs.squeeze(0),))
        return features.unsqueeze(0)

    def __call__(self, inputs: Tensor, state: State, *, normalise: bool, training: bool) -> Output:
        """(1, B, …) to both ends."""
        self._set(normalise, training)
        own = {name: value.squeeze(0) for name, value in state.items()}
        features, logits = functional_call(self.model, own, (inputs.squeeze(0),))
        return Output(features.unsqueeze(0), logits.unsqueeze(0))

    def _set(self, normalise: bool, training: bool) -> None:
        self.model.train(training)
        for layer in self.normalisation:
            layer.training = normalise
