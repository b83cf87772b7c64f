from __future__ import annotations

from paper.page.figures import fedavg_parameters, prototype_parameters, trunk_parameters


def test_the_network_is_the_one_the_paper_speaks_of() -> None:
    assert fedavg_parameters(1000) == 1_366_792  # "approximately 1.36M parameters for 1000 classes"
    assert fedavg_parameters(1000) - trunk_parameters() == 1_025_000  # "with 1.0M between the last two layers"


def test_prototypes_lose_their_advantage_as_classes_and_dimensions_grow() -> None:
    assert prototype_parameters(10, 50) == 500
    assert prototype_parameters(1000, 1000) / fedavg_parameters(1000) > 0.7
    assert prototype_parameters(10, 500) / fedavg_parameters(10) < 0.02
