"""On a machine with an NVIDIA driver: what tpmon reads equals what NVML says when asked directly."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tpmon.model.gpu import GpuSample, GpuState
from tpmon.model.known import Known, is_known
from tpmon.probe.gpu.card_readings import GpuReading
from tpmon.probe.gpu.child_link import GpuProbe
from tpmon.probe.gpu.mapping import open_device_indices

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

HOLD_A_CONTEXT = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
print("failed" if failed else "ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module", autouse=True)
def driver() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA driver: {error}")
    if pynvml.nvmlDeviceGetCount() == 0:
        pytest.skip("the NVIDIA driver lists no card")


@pytest.fixture(scope="module")
def probe() -> Iterator[GpuProbe]:
    one = GpuProbe()
    one.start()
    yield one
    one.stop()


def read_until(
    probe: GpuProbe, job: dict[int, int], condition: Callable[[tuple[GpuSample, ...]], bool]
) -> tuple[GpuSample, ...]:
    end = time.monotonic() + 60
    while True:
        reading: GpuReading = probe.read(job)
        gpus: Known[tuple[GpuSample, ...]] = reading.gpus
        if is_known(gpus) and condition(gpus):
            return gpus
        assert time.monotonic() < end, reading
        time.sleep(0.1)


def test_every_card_is_read(probe: GpuProbe) -> None:
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    cards = read_until(probe, {}, lambda gpus: len(gpus) == len(handles))
    assert [card.uuid for card in cards] == [pynvml.nvmlDeviceGetUUID(one) for one in handles]
    for card, handle in zip(cards, handles, strict=True):
        assert card.state is GpuState.OK
        assert card.memory_total_bytes == pynvml.nvmlDeviceGetMemoryInfo(handle).total
        assert is_known(card.sm_pct)
        assert is_known(card.temperature_c)


def test_a_process_with_a_context_is_found_on_its_card(probe: GpuProbe) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no CUDA driver library: {error}")
    process = subprocess.Popen([sys.executable, "-c", HOLD_A_CONTEXT], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline().strip() != "ready":
            pytest.skip("CUDA gives no context here")
        assert is_known(open_device_indices(process.pid))
        job = {process.pid: 0}
        cards = read_until(
            probe, job, lambda gpus: any(is_known(card.pids) and process.pid in card.pids for card in gpus)
        )
        mine = [card for card in cards if is_known(card.pids) and card.pids]
        # The power counter and GPM need two readings of a card in use.
        uuid = mine[0].uuid
        cards = read_until(
            probe, job, lambda gpus: any(card.uuid == uuid and card.power_source == "energy counter" for card in gpus)
        )
        card = next(card for card in cards if card.uuid == uuid)
        assert 0 < card.power_w < 2 * card.power_limit_w
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
