"""Train one device without a coordinator, by methods whose clients need nothing from each other: Local and Anchors.

The device keeps the terms, the state and the frames of a client in a federation. Devices that train by the same config
have the same anchors, so their networks answer in one feature space although they never exchanged a byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from tinyproto.algorithms.base import Round
from tinyproto.config.load import Config
from tinyproto.core.streams import one_thread
from tinyproto.engine.measure import Meter, Stopwatch
from tinyproto.engine.participation import plan_round
from tinyproto.engine.round import RoundRecord, play_round
from tinyproto.engine.server import Reply
from tinyproto.engine.training import make_trainer
from tinyproto.errors import ConfigError, FederationError
from tinyproto.federation.member import Member
from tinyproto.federation.refusals import Refusal
from tinyproto.federation.terms import agree, offered_terms


class Alone:
    """The channel to the client on this device."""

    def __init__(self, member: Member, token: str) -> None:
        self.member = member
        self.token = token

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:  # noqa: ARG002
        """Let the client answer; what it would refuse from a coordinator ends the training."""
        for client, frame in frames.items():
            try:
                yield Reply(client, self.member.answer(self.token, frame))
            except Refusal as refusal:
                raise FederationError(str(refusal)) from refusal


def train_offline(folder: Path, client: int, config: Config) -> Iterator[RoundRecord]:
    """Run the rounds that are left of a config on the client in `folder`, and a closing evaluation; yield each record.

    The same config resumes where it stopped; another one starts a training of its own beside it.
    """
    model = config.model
    said = {**model.model_dump(mode="json", exclude_defaults=True), "algorithms": config.resolved()["algorithms"]}
    token = hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16).hexdigest()
    terms = offered_terms(config, token)
    setup = agree(terms, model.models)
    if setup.algorithm.row_width is not None or setup.algorithm.tensor_shapes:
        raise ConfigError(
            f"--offline: {config.algorithms[0].title} exchanges parameters with other clients; choose a method that "
            "does not: algorithms=[anchors] or algorithms=[local]"
        )
    member = Member(folder, client)
    try:
        member.hello(terms.text())
        first = member.next_round(token)
    except Refusal as refusal:
        raise FederationError(str(refusal)) from refusal
    server = setup.server(make_trainer("eager", torch.device("cpu")), Stopwatch(lambda: 0.0))
    channel, total = Alone(member, token), terms.train.rounds
    for error in server.greet(channel, [client], Meter()).values():
        raise error
    for number in range(first, total + 2):
        plan = plan_round([client], Round(number, total), 1.0, model.evaluate.every, "all", server.streams)
        with one_thread():
            record = play_round(server, channel, plan, Meter())
        for reason in record.refused.values():
            raise FederationError(reason)
        yield record
