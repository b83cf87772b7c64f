"""A broker that is away for minutes: a federation over MQTT waits for it, and ends with the records of a simulation.

`tinyproto serve` starts a broker that has ended again at once. So it is stopped for that time, and its broker is
killed at a random moment of a round: every connection breaks, and what the broker had not saved is lost.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from benchmarks.soak import Line, Verdict
from benchmarks.soak.runs import run, scratch
from tinyproto.errors import FederationError
from tinyproto.federation import require_transport

SECONDS = 300.0
ROUNDS = 6
CLIENTS = 3
CONFIG = """\
name: trial
data: {{name: digits}}
partition: {{kind: dirichlet, alpha: 0.5, num_clients: {clients}, seed: 1, min_samples: 20}}
models: [small_cnn_a]
prototypes: {{dim: 20, cps_dim: 4}}
train: {{rounds: {rounds}, local_epochs: 3, batch_size: 16, device: cpu, workers: 1}}
federation: {{quorum: 1.0, deadline: 60}}
robust: {{defence: none}}
algorithms: [tinyproto_fp]
seeds: [{seed}]
"""


def soak(seed: int, seconds: float = SECONDS, rounds: int = ROUNDS) -> Verdict:
    """Run the part."""
    try:
        require_transport("mqtt")
        from tinyproto.federation.mqtt.broker import mosquitto

        mosquitto()
    except FederationError as error:
        return Verdict(skipped=str(error))
    line, verdict, draws = Line("outage"), Verdict(), random.Random(seed)
    number, share = draws.randint(3, rounds - 1), draws.random()  # the first round starts processes
    verdict.figures = {"seconds away": seconds, "from round": number, "after a share of": round(share, 2)}
    with scratch(verdict) as folder:  # without a defence, which a simulation does not have by default
        (folder / "trial.yaml").write_text(CONFIG.format(clients=CLIENTS, rounds=rounds, seed=seed))
        status, said = run(folder, "run", "trial.yaml", "--runs", "alone")
        assert status == 0, f"the undisturbed run failed: {said}"
        try:
            verdict.figures["asked again"] = _federation(folder, number, share, seconds, line)
        except FederationError as error:
            verdict.failures.append(str(error))
        else:
            alone, there = (folder / runs / "trial" / "rounds.jsonl" for runs in ("alone", "runs"))
            if alone.read_bytes() != there.read_bytes():
                verdict.failures.append(f"{there.name} differs from that of an undisturbed run")
    line.end()
    return verdict


def _federation(folder: Path, number: int, share: float, seconds: float, line: Line) -> int:
    """Run a federation with an outage from within this round on; return how often a round was asked again.

    `share` is the part of the round, which is taken to last as long as the one before.
    """
    from benchmarks.transports.processes import Deployment, time_of
    from tinyproto.federation.key_making import make_keys
    from tinyproto.federation.processes import free_port

    make_keys(folder / "keys", CLIENTS, [])
    with Deployment(folder, free_port(), "trial") as deployed:
        serve = deployed.serve("trial.yaml", "mqtt")
        for client in range(CLIENTS):
            deployed.join(client, "mqtt", deployed.port, "trial.yaml", "small_cnn_a")
        now, before = (time_of(deployed.wait_for("round", 120, round=one)) for one in (number, number - 1))
        time.sleep(share * (now - before))
        serve.process.send_signal(signal.SIGSTOP)
        try:
            serve.child("mosquitto.conf").kill()
            give_up = time.monotonic() + seconds
            while time.monotonic() < give_up:
                line.show(f"the broker is away for another {give_up - time.monotonic():.0f} s")
                time.sleep(min(5.0, seconds))
        finally:
            serve.process.send_signal(signal.SIGCONT)
        for command in deployed.commands:
            command.finish(300)
        return sum(event["event"] == "again" for event in deployed.events())
