"""What forbids a recording: a tool in the GPU's profiling slot, what old torches lack, a profiler of the program."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tpmon.hook.bus import wire_capture as w
from tpmon.hook.bus import wire_settings as wire
from tpmon.hook.capture import recorder
from tpmon.hook.capture.guard import Guard, find_cupti_user
from tpmon.hook.settings import Settings
from tpmon.hook.step_sample import Watcher

TORCH = (
    "7f10a4000000-7f10a5000000 r-xp 00000000 08:01 4211                       /opt/venv/lib/python3.11/site-packages"
)
OWN = f"{TORCH}/torch/lib/libtorch_cuda.so\n{TORCH}/nvidia/cuda_cupti/lib/libcupti.so.12\n"
AT = "7f20a4000000-7f20a5000000 r-xp 00000000 08:01 17                         "
NCU = "/opt/nvidia/nsight-compute/2025.1.1/target/linux-desktop-glibc_2_11_3-x64"
SANITIZER = "/usr/local/cuda/compute-sanitizer"
NSYS = "/opt/nvidia/nsight-systems/2025.1.1/target-linux-x64"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f"{AT}{NSYS}/libToolsInjection64.so\n", "libToolsInjection64.so"),
        (f"{AT}/tmp/nvidia/libToolsInjection64.so (deleted)\n", "libToolsInjection64.so (deleted)"),
        (f"{AT}/usr/lib/libnsys-mpi.so\n", "libnsys-mpi.so"),
        (f"{AT}/usr/local/cuda/lib64/libcupti_injection.so\n", "libcupti_injection.so"),
        (f"{AT}{NCU}/libcuda-injection.so\n", "libcuda-injection.so"),
        (f"{AT}/tmp/x/libTreeLauncherTargetInjection.so\n", "libTreeLauncherTargetInjection.so"),
        (f"{AT}{NCU}/libnvperf_target.so\n", "libnvperf_target.so"),
        (f"{AT}{SANITIZER}/libsanitizer-collection.so\n", "libsanitizer-collection.so"),
        (f"{AT}{SANITIZER}/libInterceptorInjectionTarget.so\n", "libInterceptorInjectionTarget.so"),
        (f"{AT}/usr/local/cuda/lib64/libcuinj64.so.11.8\n", "libcuinj64.so.11.8"),
        (f"{AT}/opt/samples/libcupti_trace_injection.so\n", "libcupti_trace_injection.so"),
        (f"{AT}/opt/venv/lib/triton/_C/libproton.so\n", "libproton.so"),
        (f"{AT}/usr/lib/libparcagpucupti.so\n", "libparcagpucupti.so"),
        (f"{AT}/opt/mperf/libmperf_cupti.so\n", "libmperf_cupti.so"),
        (f"{AT}/opt/scorep/lib/libscorep_adapter_cuda_event.so.0\n", "libscorep_adapter_cuda_event.so.0"),
        (f"{AT}/opt/tau/x86_64/lib/libTAU-CUPTI.so\n", "libTAU-CUPTI.so"),
        (f"{AT}/opt/hpctoolkit/ext-libs/libhpcrun.so\n", "libhpcrun.so"),
        (f"{AT}/opt/venv/lib/python3.11/site-packages/torch/lib/libcupti-2d0b8a.so.11.8\n", ""),
        (f"{AT}/usr/local/cuda/extras/CUPTI/lib64/libnvperf_host.so\n", ""),
        (f"{AT}{NSYS}/libInterceptorInjection\udcff.so\n", "libInterceptorInjection\ufffd.so"),
        (f"{AT}/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12\n", ""),
        ("7fff00000000-7fff00021000 rw-p 00000000 00:00 0                          [stack]\n", ""),
        ("", ""),
    ],
)
def test_the_tool_in_front_of_a_run_is_known_by_its_library_and_torchs_own_is_none(tmp_path, line, name):
    maps = tmp_path / "maps"
    for text in (f"{line}{OWN}", f"{OWN}{line}"):
        maps.write_text(text, encoding="utf-8", errors="surrogateescape")
        assert find_cupti_user(str(maps)) == name


def test_a_library_that_the_driver_was_told_to_load_is_named_and_maps_that_cannot_be_read_name_nobody(
    tmp_path, torch, monkeypatch
):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/odd tool/lib/libwatches.so")
    assert find_cupti_user(str(tmp_path / "gone")) == "libwatches.so"
    assert refuse() == "another tool holds the GPU's profiling slot: libwatches.so"
    assert refuse(w.KIND_RANGE) == "nsys is not in front of this run, and cannot be put there now"
    torch.cuda.is_initialized = lambda: False
    assert refuse() == ""
    monkeypatch.delenv("CUDA_INJECTION64_PATH")
    assert find_cupti_user(str(tmp_path / "gone")) == ""
    assert find_cupti_user() == ""


class Graph:
    """torch.cuda.CUDAGraph, by what a program keeps of it."""


class Profile:
    """torch.autograd.profiler.profile, by what the guard wraps of it."""

    on = 0

    def _prepare_trace(self) -> None:
        pass

    def __enter__(self) -> None:
        self._prepare_trace()
        Profile.on += 1

    def __exit__(self, *error: object) -> None:
        Profile.on -= 1


@pytest.fixture
def torch(monkeypatch):
    """Return a torch of CUDA 11 whose device is in use and with which nothing was recorded yet."""
    cuda = SimpleNamespace(is_initialized=lambda: True, CUDAGraph=Graph)
    autograd = SimpleNamespace(_profiler_enabled=lambda: False)
    made = SimpleNamespace(
        cuda=cuda,
        _C=SimpleNamespace(_autograd=autograd),
        version=SimpleNamespace(cuda="11.8"),
        __version__="2.4.0+cu118",
    )
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", SimpleNamespace(profile=Profile))
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    monkeypatch.setattr(recorder, "_BEGUN", [])
    return made


def refuse(kind: int = w.KIND_PROBE) -> str:
    guard = Guard(lambda: None, lambda _: None)
    try:
        return guard.refuse(kind)
    finally:
        guard.take_back()


REFUSED = "torch is of CUDA 11.8: a profile can hang or crash the program's CUDA graphs"


def test_a_first_profile_is_refused_where_cuda_11_has_graphs_or_inductor_makes_them_and_later_ones_are_not(
    torch, monkeypatch
):
    assert refuse() == refuse(w.KIND_CAPTURE) == ""
    graphs = [Graph()]
    assert refuse() == refuse(w.KIND_CAPTURE) == REFUSED
    assert refuse(w.KIND_SNAPSHOT) == ""
    torch.version.cuda = "12.1"
    assert refuse() == ""
    torch.version.cuda = None  # of ROCm
    assert refuse() == ""
    torch.version.cuda = "11.8"
    graphs.clear()
    assert refuse() == ""
    recorder._BEGUN[:] = [True]
    graphs.append(Graph())
    assert refuse() == "", "graphs that were made after a profile bear another one"
    recorder._BEGUN.clear()
    graphs.clear()
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", SimpleNamespace())
    assert refuse() == REFUSED
    torch.cuda.is_initialized = lambda: False
    assert refuse() == ""


def test_a_snapshot_is_refused_where_torch_cannot_bound_it(torch):
    for version, refusal in (
        ("1.13.1+cu117", "torch 1.13.1+cu117 keeps no bounded history: a snapshot needs torch 2.1"),
        ("2.0.1", "torch 2.0.1 keeps no bounded history: a snapshot needs torch 2.1"),
        ("2.1.0a0+git1", ""),
        ("2.13.0+cu130", ""),
    ):
        torch.__version__ = version
        assert refuse(w.KIND_SNAPSHOT) == refusal


@pytest.fixture
def guard(monkeypatch):
    autograd = SimpleNamespace(_profiler_enabled=lambda: Profile.on > 0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_autograd=autograd)))
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", SimpleNamespace(profile=Profile))
    monkeypatch.setattr(Profile, "on", 0)
    guard = Guard(lambda: None, lambda error: None)
    yield guard
    guard.take_back()


def told(guard: Guard | None) -> int:
    settings = Settings()
    settings.guard = guard
    settings._read_switches()
    return settings.words[wire.SET_PROFILER]


@pytest.mark.parametrize("captured", [False, True])
def test_a_profiler_of_the_program_is_told_before_and_after_a_capture(guard, captured):
    if captured:
        guard.install()
    assert told(guard if captured else None) == 0
    with Profile():
        assert told(guard if captured else None) == 1
    assert told(guard if captured else None) == 0


def test_ours_is_not_told_and_one_that_is_prepared_is(guard):
    guard.install()
    ours = Profile()
    guard.ours = ours
    with ours:
        assert (Profile.on, told(guard)) == (1, 0)
    guard.ours = None
    theirs = Profile()
    theirs._prepare_trace()
    assert (Profile.on, told(guard)) == (0, 1)
    theirs.__exit__(None, None, None)
    assert told(guard) == 0


def test_the_settings_ask_the_guard_of_the_capture(monkeypatch):
    """Without one, which only the first request makes, they ask torch alone."""
    guard = object()
    steps: Any = SimpleNamespace(watch=1, ddp=[], fsdp=[], page=memoryview(bytearray(4096)), mailbox=None, steps=1)
    monkeypatch.setattr(Settings, "_attempt", lambda *_: None)
    watcher = Watcher(steps)
    for mailbox, expected in (
        (None, None),
        (SimpleNamespace(capture=None), None),
        (SimpleNamespace(capture=SimpleNamespace(guard=guard)), guard),
    ):
        steps.watch, steps.mailbox = 1, mailbox
        watcher.at_step(5)
        assert watcher._settings.guard is expected
