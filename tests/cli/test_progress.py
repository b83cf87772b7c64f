"""Progress of several running cells."""

from __future__ import annotations

import io
import re

from rich.console import Console

from tinyproto.builder import Cell
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.progress import LINE_SECONDS, REMEMBERED_SECONDS, Expected, Progress
from tinyproto.cli.terminal import Output
from tinyproto.config import parse_config
from tinyproto.engine.measure import Cost
from tinyproto.engine.round import RoundRecord
from tinyproto.tracking.summary import RoundResult

ENTRIES = parse_config({"models": ["small_cnn_a"], "algorithms": ["local", "fedproto"]}).algorithms
CELLS = [Cell(index, ENTRIES[index % 2], index // 2) for index in range(4)]
ROUNDS = 10
RULES = ("head", "global", "local")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen:
    """A progress with captured output and a clock of its own."""

    def __init__(self, *, terminal: bool = False, verbose: bool = False, height: int = 30) -> None:
        self.clock = Clock()
        self.stop = StopOnInterrupt()
        self.file = io.StringIO()
        output = Output(verbose=verbose)
        output.console = Console(
            file=self.file, force_terminal=terminal, width=120, height=height, color_system=None, highlight=False
        )
        self.progress = Progress(
            output, [Expected(ROUNDS, "global")] * len(CELLS), lambda: self.stop.wanted, self.clock
        )

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def played(number: int, *, closing: bool = False, notes: tuple[str, ...] = ()) -> RoundResult:
    record = RoundRecord(
        round=number,
        closing=closing,
        participants=(0,),
        accuracy=dict.fromkeys(RULES, 0.5),
        client_mean=dict.fromkeys(RULES, 0.5),
        loss={"cross_entropy": 1.5},
        traffic={"training": {"up": Cost(3, 12, 80), "down": Cost(0, 0, 40)}},
        clients={},
    )
    return RoundResult(record, {"total": 0.5}, notes)


RESULT = {
    "rounds": ROUNDS,
    "accuracy": {"last": {"head": 0.5, "global": None, "local": 0.25}},
    "payload_bytes_per_round": {"up": 12, "down": 0},
    "seconds_per_round": {"total": 0.5},
}


def test_the_time_left_follows_the_pace_of_the_latest_rounds() -> None:
    clock = Clock()
    progress = Progress(Output(quiet=True), [Expected(1200, "global")], lambda: False, clock)
    progress.started(CELLS[0], 0)
    assert progress.overall.time_remaining is None
    quick = int(REMEMBERED_SECONDS)
    for number, seconds in enumerate([10.0] * 100 + [1.0] * quick, 1):
        clock.now += seconds
        progress.played(CELLS[0], played(number))
    assert progress.overall.time_remaining == 200


def test_rounds_of_an_earlier_run_say_nothing_about_the_pace() -> None:
    screen = Screen()
    for cell in CELLS[:3]:
        screen.progress.started(cell, 8)
    for number in (9, 10):
        screen.clock.now += 5
        screen.progress.played(CELLS[0], played(number))
    assert screen.progress.overall.time_remaining == 70  # 14 rounds


def test_without_a_terminal_now_and_then_a_line_tells_how_the_grid_stands() -> None:
    screen = Screen()
    progress = screen.progress
    progress.opens(4)
    progress.started(CELLS[0], 0)
    progress.started(CELLS[1], 0)
    for number in range(1, 5):
        screen.clock.now += LINE_SECONDS / 4
        progress.played(CELLS[number % 2], played(number))
    (line,) = screen.lines
    assert re.search("^4 of 40 rounds, 2 cells .*0:09:00 left", line)


def test_a_finished_cell_is_a_line_with_its_place_in_the_grid_and_the_time_left() -> None:
    screen = Screen()
    progress = screen.progress
    progress.opens(2)  # an earlier run has done the first two
    progress.started(CELLS[2], 8)
    progress.started(CELLS[3], 0)
    for number in (9, 10):
        screen.clock.now += 3
        progress.played(CELLS[2], played(number))
    progress.played(CELLS[2], played(11, closing=True))
    progress.finished(CELLS[2], RESULT)
    facts = "10 rounds, head 50.0 %, local 25.0 %, 12 B/round, 0.50 s/round, 0:00:30 left"
    assert screen.lines == [f"[3/4] Local, seed 1: {facts}"]
    for number in range(1, 11):
        progress.played(CELLS[3], played(number))
    progress.finished(CELLS[3], RESULT)
    assert screen.lines[1].startswith("[4/4] FedProto, seed 1: ")
    assert "left" not in screen.lines[1]


def test_lines_of_rounds_and_notes_name_their_cell() -> None:
    screen = Screen(verbose=True)
    for cell in CELLS[:2]:
        screen.progress.started(cell, 0)
    screen.progress.played(CELLS[1], played(1, notes=("trained one by one",)))
    screen.progress.played(CELLS[0], played(1))
    screen.progress.told("cells share the GPU through CUDA MPS")
    first, second, third, fourth = screen.lines
    assert first == "FedProto, seed 0: trained one by one"
    assert second.startswith("FedProto, seed 0: round 1: head 50.0 %")
    assert third.startswith("Local, seed 0: round 1: ")
    assert fourth == "cells share the GPU through CUDA MPS"


def test_what_a_method_derived_is_a_line_even_where_there_are_bars() -> None:
    for terminal in (False, True):
        screen = Screen(terminal=terminal)
        screen.progress.derived(CELLS[1], {"cps_dim": 42, "global_scale": 0.0091837}, 1)
        assert screen.lines == ["FedProto, seed 0: derived s = 42, μ = 0.009184 (round 1)"]


def bars(screen: Screen) -> dict[str, tuple[float, bool]]:
    return {task.description: (task.completed, task.visible) for task in screen.progress.bars.tasks}


def test_a_terminal_has_a_bar_for_every_cell_under_way_and_one_for_all() -> None:
    screen = Screen(terminal=True)
    with screen.progress as progress:
        progress.opens(3)
        for cell in CELLS[1:3]:
            progress.started(cell, 0)
        for _ in range(2):
            screen.clock.now += 4
            progress.played(CELLS[1], played(1))
        progress.played(CELLS[2], played(1))
        assert bars(screen) == {
            "all": (3, True), "[2/4] FedProto, seed 0": (2, True), "[3/4] Local, seed 1": (1, True)
        }  # fmt: skip
        progress.finished(CELLS[1], RESULT)
    assert bars(screen)["[2/4] FedProto, seed 0"] == (2, True)
    assert "3/30" in screen.file.getvalue()
    assert progress.overall.time_remaining == 54  # 27 rounds, 2 in the 4 seconds after the first


def test_a_cell_that_goes_back_takes_its_rounds_back() -> None:
    screen = Screen(terminal=True)
    screen.progress.started(CELLS[0], 0)
    for number in range(1, 6):
        screen.progress.played(CELLS[0], played(number))
    screen.progress.started(CELLS[0], 3)
    assert bars(screen) == {"all": (3, True), "[1/4] Local, seed 0": (3, True)}


def test_bars_of_finished_cells_go_where_the_screen_is_too_small_for_all() -> None:
    screen = Screen(terminal=True, height=5)
    screen.progress.started(CELLS[0], 9)
    screen.progress.played(CELLS[0], played(10))
    screen.progress.finished(CELLS[0], RESULT)
    assert bars(screen)["[1/4] Local, seed 0"] == (10, False)


def test_the_first_interrupt_is_passed_on() -> None:
    screen = Screen()
    assert not screen.progress.stop_wanted()
    screen.stop.wanted = True
    assert screen.progress.stop_wanted()


def test_a_cell_that_failed_is_a_line_and_its_rounds_are_no_longer_waited_for() -> None:
    screen = Screen()
    progress = screen.progress
    progress.opens(4)
    progress.started(CELLS[1], 0)
    progress.played(CELLS[1], played(1))
    progress.failed(CELLS[1], "its process ended with status 7")
    assert screen.lines == ["[2/4] FedProto, seed 0: failed: its process ended with status 7"]
    assert progress.overall.remaining == 30
    progress.failed(CELLS[2], "no data")  # never began
    assert progress.overall.remaining == 20


def test_a_cell_left_to_another_process_is_a_line_without_a_failure() -> None:
    screen = Screen()
    screen.progress.opens(4)
    screen.progress.skipped(CELLS[2], "left to another process, which is at it")
    assert screen.lines == [f"[3/4] {CELLS[2].title}: left to another process, which is at it"]
    assert screen.progress.overall.remaining == 30


def test_cells_of_several_experiments_have_rounds_and_a_rule_of_their_own() -> None:
    output = Output()
    output.console = Console(file=io.StringIO(), width=120)
    progress = Progress(output, [Expected(300, "global"), Expected(60, "local")], lambda: False)
    progress.opens(2)
    assert progress.overall.total == 360
    cell = Cell(1, ENTRIES[1], 0, of="readings_paper")
    progress.started(cell, 10)
    progress.played(cell, played(11))
    (task,) = [task for task in progress.bars.tasks if task.description == "[2/2] readings_paper: FedProto, seed 0"]
    assert (task.total, task.completed, task.fields["accuracy"]) == (60, 11, "local 50.0 %")
