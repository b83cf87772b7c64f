"""A client of a federation without Flower: it accepts terms or refuses them, and answers frames from its disk."""

from __future__ import annotations

import json
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support import make_patterns, same_tensors
from support_members import CLASSES, SHAPE, TOKEN, small_values, write_arrays, write_join
from tinyproto.algorithms.base import Round
from tinyproto.config import parse_config
from tinyproto.core.streams import Streams
from tinyproto.core.task import FitResult, Task
from tinyproto.engine.measure import Meter, Stopwatch
from tinyproto.engine.round import play_round
from tinyproto.engine.server import Reply, RoundPlan, ServerRuntime
from tinyproto.engine.training import EagerTrainer
from tinyproto.errors import ConfigError, WireError
from tinyproto.federation.client_data import client_data
from tinyproto.federation.member import JoinFile, Member, MemberFiles
from tinyproto.federation.refusals import WORDS, Refusal
from tinyproto.federation.terms import accepted_terms, agree, new_token, offered_terms
from tinyproto.storage.tensor_files import load_sealed, save_tensors
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind, pack, peek, unpack
from tinyproto.wire.validate import open_frame


def terms_of(values: Mapping[str, Any]) -> str:
    return offered_terms(parse_config(values), TOKEN).text()


DIGEST = bytes.fromhex(json.loads(terms_of(small_values(clients=2)))["digest"])


def make_member(folder: Path, client: int = 0, model: str = "small_cnn_a", **data: Any) -> Member:
    arrays = write_arrays(folder / "data.npz", client)
    return Member(write_join(folder, model, data or {"path": str(arrays)}), client)


class Direct:
    """The engine's channel straight to members, each made from its folder for every frame."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        self.folders = folders
        self.frames: dict[tuple[int, int], bytes] = {}  # by round and client
        self.replies: dict[tuple[int, int], bytes] = {}

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterator[Reply]:
        for client in frames:
            frame = frames[client]
            reply = Member(self.folders[client], client).answer(TOKEN, frame)
            self.frames[round_number, client], self.replies[round_number, client] = frame, reply
            yield Reply(client, reply)


def play(folder: Path, values: Mapping[str, Any], rounds: int) -> tuple[ServerRuntime, Direct]:
    """A federation of two, without Flower."""
    config = parse_config(values)
    terms = offered_terms(config, TOKEN)
    setup = agree(terms, config.model.models)
    folders = {}
    for client, model in enumerate(config.model.models):
        member = make_member(folder / str(client), client, model)
        assert member.hello(terms.text()) == TOKEN
        folders[client] = member.folder
    channel = Direct(folders)
    server = ServerRuntime(setup.algorithm, EagerTrainer(), Streams(0), setup.expectation, Stopwatch(lambda: 0.0))
    server.greet(channel, [0, 1], Meter())
    for number in range(1, rounds + 1):
        play_round(server, channel, RoundPlan(Round(number, rounds), [0, 1], frozenset([0, 1])), Meter())
    return server, channel


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Direct:
    return play(tmp_path_factory.mktemp("played"), small_values(clients=2), 2)[1]


def state_file(folder: Path, client: int = 0) -> Path:
    return MemberFiles(folder / "state" / TOKEN, client).state


def test_asked_again_for_its_last_round_a_client_says_the_same_and_stays_as_it_is(played: Direct) -> None:
    folder = played.folders[0]
    before = state_file(folder).read_bytes()
    again = Member(folder, 0).answer(TOKEN, played.frames[2, 0])
    assert again == played.replies[2, 0]
    assert state_file(folder).read_bytes() == before
    assert not list(state_file(folder).parent.glob("*.partial"))


def test_it_trains_once_however_often_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[str] = []
    fit = EagerTrainer.fit

    def counted(trainer: EagerTrainer, tasks: Sequence[Task]) -> list[FitResult]:
        fits.extend(task.name for task in tasks)
        return fit(trainer, tasks)

    monkeypatch.setattr(EagerTrainer, "fit", counted)
    _, channel = play(tmp_path, small_values(clients=2, rounds=1), 1)
    assert fits == ["client 0", "client 1"]
    for _ in range(3):
        assert Member(channel.folders[1], 1).answer(TOKEN, channel.frames[1, 1]) == channel.replies[1, 1]
    assert fits == ["client 0", "client 1"]


def test_asked_again_for_the_round_before_its_last_it_says_the_same_and_one_before_that_is_refused(
    tmp_path: Path,
) -> None:
    _, channel = play(tmp_path, small_values(clients=2, rounds=3), 3)
    member, before = Member(channel.folders[0], 0), state_file(channel.folders[0]).read_bytes()
    assert member.answer(TOKEN, channel.frames[2, 0]) == channel.replies[2, 0]
    assert state_file(channel.folders[0]).read_bytes() == before
    with pytest.raises(Refusal, match="train in round 1 after completing 3") as refusal:
        member.answer(TOKEN, channel.frames[1, 0])
    assert refusal.value.code == "stale"


def test_a_frame_of_another_federation_gets_no_cached_reply(played: Direct) -> None:
    foreign = pack(peek(played.frames[2, 0])._replace(digest=b"another federatn"), played.frames[2, 0][HEADER_BYTES:])
    with pytest.raises(Refusal, match=r"checksum: .* another federation") as refusal:
        Member(played.folders[0], 0).answer(TOKEN, foreign)
    assert refusal.value.code == "frame"


def test_a_damaged_frame_gets_no_cached_reply_and_trains_nothing(
    played: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EagerTrainer, "fit", lambda *_: pytest.fail("the client trains"))
    before = state_file(played.folders[0]).read_bytes()
    for round_number in (1, 2, 3):  # two that it completed, and the next
        intact = peek(played.frames[2, 0])._replace(round_number=round_number)
        damaged = bytearray(pack(intact._replace(digest=DIGEST), played.frames[2, 0][HEADER_BYTES:]))
        damaged[-1] ^= 1
        with pytest.raises(Refusal, match="checksum") as refusal:
            Member(played.folders[0], 0).answer(TOKEN, bytes(damaged))
        assert refusal.value.code == "frame"
    assert state_file(played.folders[0]).read_bytes() == before


def test_a_frame_of_a_federation_with_another_token_is_refused(played: Direct) -> None:
    values = small_values(clients=2)
    config = parse_config(values)
    other = offered_terms(config, "0" * 32)
    assert other.digest != json.loads(terms_of(values))["digest"]
    ours, theirs = (agree(terms, config.model.models).expectation for terms in (offered_terms(config, TOKEN), other))
    assert ours == replace(theirs, digest=ours.digest)  # the same settings
    header, body = unpack(played.frames[2, 0], ours.digest)
    foreign = pack(header._replace(digest=theirs.digest), body)
    open_frame(foreign, theirs, 0, 2, (Kind.TRAIN,))
    with pytest.raises(Refusal, match=r"checksum: .* another federation") as refusal:
        Member(played.folders[0], 0).answer(TOKEN, foreign)
    assert refusal.value.code == "frame"
    with pytest.raises(WireError, match=r"checksum: .* another federation"):
        open_frame(played.replies[2, 0], theirs, 0, 2, (Kind.UPDATE,))


@pytest.mark.parametrize(
    "frame", [b"", b"garbage" * 20, pack(Header(Kind.UPDATE, 3, 0, DIGEST), b"")], ids=["empty", "garbage", "update"]
)
def test_what_is_no_frame_for_a_client_is_refused(frame: bytes, played: Direct) -> None:
    before = state_file(played.folders[0]).read_bytes()
    with pytest.raises(Refusal) as refusal:
        Member(played.folders[0], 0).answer(TOKEN, frame)
    assert refusal.value.code == "frame"
    assert state_file(played.folders[0]).read_bytes() == before


@pytest.mark.parametrize("token", ["../../etc", "", "f" * 32])
def test_a_federation_nobody_said_hello_for_is_unknown(token: str, played: Direct) -> None:
    with pytest.raises(Refusal) as refusal:
        Member(played.folders[0], 0).answer(token, played.frames[2, 0])
    assert refusal.value.code == "unknown"


def test_a_damaged_state_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    _, channel = play(tmp_path, small_values(clients=2, rounds=1), 1)
    state_file(channel.folders[0]).write_bytes(b"damaged")
    with pytest.raises(Refusal, match="remove it") as refusal:
        Member(channel.folders[0], 0).answer(TOKEN, channel.frames[1, 0])
    assert refusal.value.code == "state"


@pytest.mark.parametrize("place", [0.0, 0.2, 0.5, 1.0])
def test_a_state_with_a_flipped_bit_is_refused(tmp_path: Path, place: float) -> None:
    _, channel = play(tmp_path, small_values(clients=2, rounds=1), 1)
    file = state_file(channel.folders[0])
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    file.write_bytes(content)
    with pytest.raises(Refusal, match=f"{file} is damaged .*; remove it") as refusal:
        Member(channel.folders[0], 0).answer(TOKEN, channel.frames[1, 0])
    assert refusal.value.code == "state"


def test_a_state_without_a_digest_is_refused(tmp_path: Path) -> None:
    _, channel = play(tmp_path, small_values(clients=2, rounds=1), 1)
    file = state_file(channel.folders[0])
    facts, tensors = load_sealed(file)
    del facts["tensors"]
    save_tensors(file, tensors, {"tinyproto": json.dumps(facts)})
    with pytest.raises(Refusal, match=r"damaged|digest") as refusal:
        Member(channel.folders[0], 0).answer(TOKEN, channel.frames[1, 0])
    assert refusal.value.code == "state"


def test_another_network_than_the_one_that_is_kept_is_refused_at_the_hello_already(tmp_path: Path) -> None:
    values = small_values(clients=2)
    _, channel = play(tmp_path, values, 1)
    folder = channel.folders[0]
    before = state_file(folder).read_bytes()
    other = make_member(folder, model="small_cnn_b")
    for ask in (lambda: other.hello(terms_of(values)), lambda: other.answer(TOKEN, channel.frames[1, 0])):
        with pytest.raises(Refusal, match=r"'small_cnn_a', not of 'small_cnn_b'; .*--model small_cnn_a") as no:
            ask()
        assert no.value.code == "model"
    assert state_file(folder).read_bytes() == before
    assert make_member(folder).hello(terms_of(values)) == TOKEN
    elsewhere = offered_terms(parse_config(values), new_token())
    assert other.hello(elsewhere.text()) == elsewhere.federation
    state_file(folder).unlink()
    assert other.hello(terms_of(values)) == TOKEN


def test_a_network_that_changed_under_its_name_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "changing_net.py").write_text(NETS)
    values = {**small_values(clients=2), "models": ["changing_net:flat", "small_cnn_a"]}
    _, channel = play(tmp_path / "played", values, 2)
    folder = tmp_path / "client"
    member = make_member(folder, model="changing_net:flat")
    member.hello(terms_of(values))
    member.answer(TOKEN, channel.frames[1, 0])
    changed = "nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Linear(5, proto_dim))"
    net = sys.modules["changing_net"]
    exec(f"def flat(proto_dim):\n    return {changed}", vars(net))
    with pytest.raises(Refusal, match="does not fit the network 'changing_net:flat'") as refusal:
        Member(folder, 0).answer(TOKEN, channel.frames[2, 0])
    assert refusal.value.code == "model"


def test_a_state_is_its_owner_s_alone(played: Direct) -> None:
    for folder in (state_file(played.folders[0]).parent, state_file(played.folders[0]).parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_file_without_anything_to_train_on_is_refused(tmp_path: Path) -> None:
    pixels, labels = np.zeros((3, 6, 6), np.uint8), np.arange(3)
    file = tmp_path / "empty.npz"
    np.savez(file, x_train=pixels[:0], y_train=labels[:0], x_test=pixels, y_test=labels)
    with pytest.raises(Refusal, match=r"empty\.npz has no training samples") as refusal:
        make_member(tmp_path / "client", path=str(file)).hello(terms_of(small_values()))
    assert refusal.value.code == "data"


@pytest.mark.parametrize(
    "names",
    [
        ("images", "labels"),
        ("x_test", "y_test"),
        ("x_train", "y_train", "x_test"),
        ("images", "labels", "x_train", "y_train"),
        ("pictures",),
    ],
)
def test_a_file_of_other_arrays_is_refused_with_the_names_that_are_needed(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    parts = {name: np.arange(3) if name[0] in "yl" else np.zeros((3, 6, 6), np.uint8) for name in names}
    np.savez(tmp_path / "other.npz", **parts)  # type: ignore[arg-type]
    with pytest.raises(Refusal) as refusal:
        make_member(tmp_path / "client", path=str(tmp_path / "other.npz")).hello(terms_of(small_values()))
    assert refusal.value.code == "data"
    assert "other.npz must hold the arrays x_train and y_train" in str(refusal.value)
    assert str(refusal.value).endswith(f"it has {', '.join(names)}")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("no.npz", b"no archive", "is damaged or not an .npz file"), ("none.npz", None, "does not exist")],
)
def test_a_file_that_cannot_be_read_is_refused(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Refusal, match=words) as refusal:
        make_member(tmp_path / "client", path=str(tmp_path / name)).hello(terms_of(small_values()))
    assert refusal.value.code == "data"
    assert "data.root" not in str(refusal.value)


def test_an_empty_folder_is_refused_with_what_it_has_to_hold(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(Refusal, match=r"images must hold the folder train, .* \(train/CLASS/\*\.png\)") as refusal:
        make_member(tmp_path / "client", path=str(tmp_path / "images")).hello(terms_of(small_values()))
    assert refusal.value.code == "data"


def test_two_federations_keep_apart(tmp_path: Path) -> None:
    values = small_values(clients=2, rounds=1)
    _, channel = play(tmp_path, values, 1)
    before = state_file(channel.folders[0]).read_bytes()
    other = offered_terms(parse_config(values), new_token())
    member = Member(channel.folders[0], 0)
    assert member.hello(other.text()) == other.federation
    asked = peek(channel.frames[1, 0])._replace(digest=bytes.fromhex(other.digest))
    reply = member.answer(other.federation, pack(asked, channel.frames[1, 0][HEADER_BYTES:]))
    assert reply[HEADER_BYTES:] == channel.replies[1, 0][HEADER_BYTES:]
    assert state_file(channel.folders[0]).read_bytes() == before


@pytest.mark.parametrize("name", ["tinyproto_ft", "fedavg", "fedkd"])
def test_members_from_disk_repeat_to_the_bit(name: str, tmp_path: Path) -> None:
    values = small_values(name, clients=2)
    if name == "fedavg":
        values["models"] = ["small_cnn_a", "small_cnn_a"]
    one, _ = play(tmp_path / "one", values, 2)
    two, _ = play(tmp_path / "two", values, 2)
    assert same_tensors(one.state, two.state)
    assert any(tensor.abs().sum() > 0 for tensor in one.state.values())


LIMITED = """\
import resource, sys
from pathlib import Path
from tinyproto.federation.member import Member
from tinyproto.federation.refusals import Refusal

folder, token, frame, limit = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).read_bytes(), int(sys.argv[4])
member = Member(folder, 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    sys.stdout.buffer.write(member.answer(token, frame))
except Refusal as refusal:
    print(refusal.code, refusal)
    sys.exit(3)
"""


def answer_limited(folder: Path, frame: bytes, limit: int) -> subprocess.CompletedProcess[bytes]:
    file = folder / "frame"
    file.write_bytes(frame)
    command = [sys.executable, "-c", LIMITED, str(folder), TOKEN, str(file), str(limit)]
    return subprocess.run(command, capture_output=True, check=False)


def test_without_room_for_its_state_a_client_says_so_and_stays_the_last_good_one(tmp_path: Path) -> None:
    _, channel = play(tmp_path / "federation", small_values(clients=2), 2)
    folder = tmp_path / "limited"
    member = make_member(folder)
    member.hello(terms_of(small_values(clients=2)))
    assert member.answer(TOKEN, channel.frames[1, 0]) == channel.replies[1, 0]
    before = state_file(folder).read_bytes()
    full = answer_limited(folder, channel.frames[2, 0], limit=4096)
    assert (full.returncode, full.stdout.split()[0]) == (3, b"no-space")
    assert b"cannot write" in full.stdout
    assert state_file(folder).read_bytes() == before
    assert {path.name for path in state_file(folder).parent.iterdir()} == {"client-0.safetensors", "lock", "terms.json"}
    roomy = answer_limited(folder, channel.frames[2, 0], limit=resource.RLIM_INFINITY)
    assert roomy.returncode == 0, roomy.stderr
    assert roomy.stdout == channel.replies[2, 0]


def spoilt(change: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> str:
    return json.dumps({**json.loads(terms_of(values or small_values())), **change})


def entry(values: Mapping[str, Any], **change: Any) -> dict[str, Any]:
    return {"algorithm": {**json.loads(terms_of(values))["algorithm"], **change}}


BAD_TERMS: Mapping[str, tuple[str, str, str]] = {
    "other protocol": (spoilt({"protocol": 1}), "protocol", "version 1 of the protocol, this client version 2"),
    "no JSON": ("{", "terms", "not JSON"),
    "a list": ("[]", "protocol", "None"),
    "an unknown key": (spoilt({"more": 1}), "terms", "more: Extra inputs"),
    "a token that is a path": (spoilt({"federation": "../" * 10 + "xx"}), "terms", "federation"),
    "another digest": (spoilt({"digest": "0" * 32}), "digest", "install the same release"),
    "another K": (spoilt({"num_classes": CLASSES + 1}), "digest", "digest"),
    "other masks": (spoilt(entry(small_values(), mask_seed=7)), "digest", "digest"),
    "a dotted algorithm": (spoilt({"algorithm": {"name": "os:system"}}), "path", "'os:system'"),
    "a dotted auxiliary": (
        spoilt(entry(small_values("fml"), auxiliary="os:system"), small_values("fml")), "path", "'os:system'"
    ),
    "a nested hyper-parameter": (spoilt(entry(small_values(), distance={"name": "os:system"})), "path", "os:system"),
    "an unknown algorithm": (spoilt({"algorithm": {"name": "magic"}}), "terms", "unknown algorithm 'magic'"),
    "fewer members": (terms_of(small_values(clients=1)), "member", "0 … 0, this is 1"),
    "other shape": (terms_of(small_values(input_shape=[3, 6, 6])), "shape", "3 × 6 × 6, those of client 1 are 1 ×"),
    "fewer classes": (terms_of(small_values(num_classes=2)), "classes", "label 3, the federation has labels 0 … 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_TERMS)
def test_terms_that_do_not_fit_are_refused_with_a_code_and_a_sentence(what: str, tmp_path: Path) -> None:
    text, code, words = BAD_TERMS[what]
    member = make_member(tmp_path, client=1)
    with pytest.raises(Refusal) as refusal:
        member.hello(text)
    assert refusal.value.code == code
    assert words in str(refusal.value)
    assert code in WORDS
    assert not (tmp_path / "state").exists()


def test_nothing_that_terms_name_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    for change in ({"algorithm": {"name": "trap:SPEC"}}, entry(small_values("fml"), auxiliary="trap:net")):
        with pytest.raises(Refusal):
            make_member(tmp_path / "client").hello(spoilt(change, small_values("fml")))
    assert "trap" not in sys.modules


def test_where_networks_are_averaged_another_network_is_another_digest(tmp_path: Path) -> None:
    values = {**small_values("fedavg"), "models": ["small_cnn_a"]}
    assert make_member(tmp_path / "same").hello(terms_of(values)) == TOKEN
    with pytest.raises(Refusal, match="network instead of 'small_cnn_b'") as refusal:
        make_member(tmp_path / "other", model="small_cnn_b").hello(terms_of(values))
    assert refusal.value.code == "digest"


NETS = """\
from torch import nn


def flat(proto_dim):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, proto_dim))


def wrong(proto_dim):
    return nn.Linear(5, proto_dim)
"""


def test_a_clients_own_network_may_be_a_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_nets.py").write_text(NETS)
    assert make_member(tmp_path / "good", model="own_nets:flat").hello(terms_of(small_values())) == TOKEN
    with pytest.raises(Refusal, match="fails on a batch") as refusal:
        make_member(tmp_path / "bad", model="own_nets:wrong").hello(terms_of(small_values()))
    assert refusal.value.code == "model"


def write_images(folder: Path, names: list[str], parts: tuple[str, ...] = ("train", "test")) -> None:
    images = make_patterns(4 * len(names), len(names), SHAPE)
    for index, (pixels, label) in enumerate(zip(images.inputs, images.labels.tolist(), strict=True)):
        place = folder / parts[index >= 3 * len(names)] / names[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(place / f"{index}.png")


def sizes(member: Member, text: str) -> dict[str, float]:
    member.hello(text)
    digest = bytes.fromhex(json.loads(text)["digest"])
    reply = member.answer(TOKEN, pack(Header(Kind.HELLO, 0, member.client, digest), b""))
    config = parse_config(small_values())
    expected = agree(offered_terms(config, TOKEN), config.model.models).expectation
    return dict(open_frame(reply, expected, member.client, 0, (Kind.HELLO,)).message.metrics)


def test_a_folder_of_images_goes_by_the_federations_names(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ["dog", "ant"])
    text = terms_of(small_values(classes=["ant", "bee", "cat", "dog"]))
    member = make_member(tmp_path / "client", path=str(tmp_path / "images"))
    assert sizes(member, text) == {"train_samples": 6, "counted_samples": 6, "counted_classes": 2}
    data = member.join.data
    found = client_data(data, 0, accepted_terms(text, "small_cnn_a")[0])
    assert found.train_counts.tolist() == [[3, 0, 0, 3]]
    assert found.counts.tolist() == [[4, 0, 0, 4]]


@pytest.mark.parametrize(
    ("names", "parts", "code", "words"),
    [
        (["dog", "wolf"], ("train", "test"), "classes", "unknown class 'wolf'"),
        (["dog", "ant"], ("val", "test"), "data", "images must hold the folder train"),
        (["dog", "ant"], ("one", "two"), "data", "images must hold the folder train"),
        (["dog", "ant"], ("train", "two"), "data", "images must hold the folder train"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    names: list[str], parts: tuple[str, str], code: str, words: str, tmp_path: Path
) -> None:
    write_images(tmp_path / "images", names, parts)
    member = make_member(tmp_path / "client", path=str(tmp_path / "images"))
    with pytest.raises(Refusal) as refusal:
        member.hello(terms_of(small_values(classes=["ant", "bee", "cat", "dog"])))
    assert refusal.value.code == code
    assert words in str(refusal.value)


def test_without_names_folders_go_by_numbers(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ["0", "3"])
    member = make_member(tmp_path / "client", path=str(tmp_path / "images"))
    assert sizes(member, terms_of(small_values()))["counted_classes"] == 2


def test_a_share_has_to_be_there(tmp_path: Path) -> None:
    share = {"data": {"name": "digits"}, "partition": {"num_clients": 2}}
    member = make_member(tmp_path, client=2, share=share)
    with pytest.raises(Refusal, match=r"the partition has clients 0 … 1") as refusal:
        member.hello(terms_of(small_values(num_classes=10, input_shape=[1, 8, 8])))
    assert refusal.value.code == "data"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Invalid JSON"),
        ('{"data": {}, "model": "small_cnn_a"}', "either `path` or `share`"),
        ('{"data": {"path": "x"}}', "model: Field required"),
        ('{"data": {"path": "x"}, "model": "a", "modle": "b"}', "modle: Extra inputs"),
    ],
)
def test_a_bad_join_file_is_an_error_that_names_it(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "join.json").write_text(text)
    with pytest.raises(ConfigError) as error:
        JoinFile.read(tmp_path)
    assert words in str(error.value)
    assert "join.json" in str(error.value)


def test_a_missing_join_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"join\.json"):
        Member(tmp_path, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithms": ["local", "fedproto"]}, "one algorithm with one seed"),
        ({"seeds": [0, 1]}, "one algorithm with one seed"),
        ({"federation": {}}, "federation.num_classes is missing"),
        ({"federation": {"num_classes": 4}}, "federation.input_shape is missing"),
    ],
)
def test_what_no_federation_can_be_is_an_error_of_the_coordinator(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        terms_of({**small_values(), **change})
    assert words in str(error.value)


def test_the_smallest_network_is_named_by_the_coordinator() -> None:
    assert json.loads(terms_of(small_values("fml")))["algorithm"]["auxiliary"] in ("small_cnn_a", "small_cnn_b")


def test_a_dotted_path_that_clients_would_have_to_import_is_an_error_of_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "served_nets.py").write_text(NETS)
    values = {**small_values("fml"), "models": ["served_nets:flat"]}
    with pytest.raises(ConfigError, match="'served_nets:flat' is a dotted path"):
        terms_of(values)
    assert json.loads(terms_of({**values, "algorithms": ["fedproto"]}))["algorithm"]["name"] == "fedproto"
