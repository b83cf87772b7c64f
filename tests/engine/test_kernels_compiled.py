"""Our kernels compiled without a GPU: ahead of time, or side by side by a stand-in for Triton."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tinyproto.stacked import capture
from tinyproto.stacked.capture import compile_first
from tinyproto.stacked.fallback import only_compile


class TooOld:
    """Triton 3.5's mode, which raises the first error of a compilation."""

    def __init__(self, executor: object) -> None:
        raise AssertionError


@pytest.mark.parametrize("modes", [{}, {"AsyncCompileMode": TooOld}], ids=["none", "without ignore_errors"])
def test_an_older_triton_compiles_each_kernel_when_it_first_runs(
    monkeypatch: pytest.MonkeyPatch, modes: dict[str, type]
) -> None:
    monkeypatch.delitem(sys.modules, "tinyproto.stacked.kernels", raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(**modes))
    from tinyproto.stacked.kernels import compiling_together

    with compiling_together() as possible:
        assert not possible
        assert not only_compile.get()
    monkeypatch.delitem(sys.modules, "tinyproto.stacked.kernels")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", None),
        ("raise ImportError('GLIBC_2.34 not found')", "cannot be imported (ImportError: GLIBC_2.34 not found)"),
        (None, "is not installed"),
    ],
)
def test_a_triton_that_cannot_be_imported_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str | None, words: str | None
) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    if source is not None:
        (tmp_path / "triton.py").write_text(source)
    found = capture.why_no_triton()
    sys.modules.pop("triton", None)
    assert found == (words and f"Triton {words}")


mode: ContextVar[bool] = ContextVar("mode", default=False)


@contextmanager
def failing_at_its_end() -> Iterator[bool]:
    mode.set(True)
    yield True
    raise RuntimeError("a kernel could not be loaded")


@pytest.mark.parametrize(
    "kernels", [None, SimpleNamespace(compiling_together=failing_at_its_end)], ids=["import", "end"]
)
def test_an_error_while_kernels_are_compiled_together_is_left_to_their_first_use(
    monkeypatch: pytest.MonkeyPatch, kernels: SimpleNamespace | None
) -> None:
    monkeypatch.setattr(capture, "why_no_kernels", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setitem(sys.modules, "tinyproto.stacked.kernels", kernels)  # None: its import fails
    called: list[bool] = []
    compile_first([lambda: called.append(mode.get())], torch.device("cuda"))
    assert called == ([] if kernels is None else [True])
    assert not mode.get()


def compiled(*types: str) -> SimpleNamespace:
    """A kernel after its compilation."""
    source = SimpleNamespace(signature=dict(enumerate(types)))
    return SimpleNamespace(kernel=SimpleNamespace(src=source, metadata="of " + types[0]))


def test_as_many_kernels_as_there_are_cores_are_compiled_at_once_and_launchers_once_for_equal_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mode:
        def __init__(self, executor: ThreadPoolExecutor, *, ignore_errors: bool) -> None:
            assert executor._max_workers == 3
            self.future_kernels = {
                "one": compiled("*fp32", "i32"), "other": compiled("*fp32", "i32"), "third": compiled("i32", "*fp32"),
                "failed": SimpleNamespace(kernel=None),
            }  # fmt: skip

        def __enter__(self) -> Mode:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    made: list[str] = []
    active = SimpleNamespace(launcher_cls=lambda source, metadata: made.append(metadata))
    modules = {"AsyncCompileMode": Mode, "runtime": SimpleNamespace(driver=SimpleNamespace(active=active))}
    monkeypatch.delitem(sys.modules, "tinyproto.stacked.kernels", raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(**modules))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 5, 6}, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    from tinyproto.stacked.kernels import compiling_together

    with compiling_together() as possible:
        assert possible
        assert not made
    assert sorted(made) == ["of *fp32", "of i32"]
    monkeypatch.delitem(sys.modules, "tinyproto.stacked.kernels")


class Device:
    """Triton's driver for a GPU that is not there."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture(params=[80, 86, 89, 90, 100, 120])
def capability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("needs Triton, and not its interpreter")
    import triton
    from triton.runtime.driver import driver

    if request.param > 90 and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
        pytest.skip("this Triton does not know it")
    monkeypatch.setattr(driver, "_active", Device(request.param))
    return int(request.param)


@pytest.mark.parametrize("dim", [500, 33])
def test_the_server_s_fit_sees_what_other_programs_wrote(capability: int, dim: int) -> None:
    from tinyproto.stacked.kernels import contrast

    classes = 100
    rows, square, bias = torch.empty(classes, dim), torch.empty(dim, dim), torch.empty(dim)
    tiles = contrast._tiles(classes, dim)
    compiled = contrast._epochs.run(
        torch.empty(32, dim), torch.empty(32, dtype=torch.int64), torch.empty(classes, classes), rows, square, bias,
        square, bias, rows, square, rows, rows, rows, rows, rows, rows, rows,
        torch.empty(tiles["ACROSS"], 32, tiles["CLASSES"]), torch.empty(32, tiles["CLASSES"]), torch.empty(32),
        torch.empty(1, dtype=torch.float64), torch.empty(1, dtype=torch.int32), 32, 1, 32, 0.1, grid=(132,),
        warmup=True, PROGRAMS=132, **tiles,
    )  # fmt: skip
    assert compiled.metadata.launch_cooperative_grid
    assert compiled.metadata.shared <= (99 if capability in (86, 89, 120) else 163) * 1024
    code = re.sub(r"\s+", " ", compiled.asm["ptx"])
    assert len(re.findall(r"global\.gpu\.release\.add", code)) == 5
    assert len(re.findall(r"ld\.acquire\.gpu", code)) == 5
    assert contrast.PER_MULTIPROCESSOR * (compiled.metadata.shared + 2048) <= 100 * 1024
    assert contrast.PER_MULTIPROCESSOR * 256 * 32 * contrast.WARPS <= 65536  # a thread has at most 255 registers
    assert "cp.async" not in code  # for less than 16 bytes it would read a multiprocessor's stale cache
    assert dim % 4 != 0 or "ld.global.cg.v4" in code


@pytest.mark.parametrize(("shared", "programs"), [(False, 264), (True, 132)])
@pytest.mark.usefixtures("capability")
def test_the_server_s_fit_leaves_room_to_other_cells(
    shared: bool, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinyproto.stacked.kernels import contrast

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    assert contrast._programs(torch.device("cuda"), shared) == programs
