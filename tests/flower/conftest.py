"""The order of tests with Flower."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The federation of real processes waits more than it works; it begins first, beside all others."""
    items.sort(key=lambda item: "test_real_federation.py" not in item.nodeid)
