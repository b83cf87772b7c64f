"""The words of a report on a real federation: what its coordinator knows, does not know, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyproto.report.words import counted

MOST_NAMES = 20
"""Classes that are named; of more, only the number is said."""


def known_facts(result: Mapping[str, Any]) -> str:
    """Return clients, classes and shape of inputs; a record of an earlier version has the number of clients only."""
    known = result.get("federation") or {}
    clients = counted(result["num_clients"], "client")
    if (joined := known.get("joined", result["num_clients"])) < result["num_clients"]:
        clients += f" ({joined} took part)"
    found = ["real federation", clients]
    if known:
        names = known.get("classes") or ()
        listed = f" ({', '.join(names)})" if 0 < len(names) <= MOST_NAMES else ""
        found.append(f"{counted(known['num_classes'], 'class')}{listed}")
        found.append(f"inputs of shape {' × '.join(map(str, known['input_shape']))}")
    return ", ".join(found)


def unknown_facts(result: Mapping[str, Any]) -> str:
    """Say what the coordinator was never told."""
    known = result.get("federation")
    if known is None or known["own_data"]:
        return "Not known to the coordinator: the clients' samples and their networks."
    return (
        f"Not known to the coordinator: the clients' samples and their networks. Its config names {result['dataset']}; "
        "a client may hold other samples of that shape."
    )


def how_to_repeat(result: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Say how to run the federation again, and how to simulate it if the config has what a simulation needs."""
    words = (
        "Save the config below as config.yaml, run tinyproto serve config.yaml over any transport, and let the same "
        "clients join with the same ids, samples and networks, which this page does not have. On a CPU, and if the "
        "same clients answer in each round, the results are the same."
    )
    known = result.get("federation")
    if known is None or known["own_data"] or not config["models"]:
        return words
    guard = " robust.defence=guard" if config["robust"]["defence"] == "auto" else ""
    return (
        f"{words} If client i joined with --share and network i modulo the number of networks in the config, this "
        f"simulates it: tinyproto run config.yaml{guard}"
    )
