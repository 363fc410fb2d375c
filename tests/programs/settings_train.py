"""Train under the hook while switches of torch are turned; prints one JSON object: scene -> words of settings.

Run: python settings_train.py FOLDER, or with --compile after it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.utils.data import DataLoader, TensorDataset

import tpmon.hook
from tests.programs.capture_asking import FOLDER, ask, told
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.bus import wire_settings
from tpmon.hook.installation import HOOK

DATA = TensorDataset(torch.arange(640.0).reshape(80, 8) / 640)
Scene = Callable[[], AbstractContextManager[object]]


def train(
    around: AbstractContextManager[object] | None = None,
    *,
    within: Scene = nullcontext,
    net: torch.nn.Module | None = None,
    before: Callable[[int], None] = lambda at: None,
    steps: int = 8,
) -> list[int]:
    """Take a few steps, of which every other one is watched, and return what the hook told last."""
    tpmon.hook.uninstall()
    tpmon.hook.install()
    with around or nullcontext():
        net = torch.nn.Linear(8, 1) if net is None else net
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for at, (x,) in zip(range(steps), DataLoader(DATA, batch_size=4), strict=False):
            HOOK.steps.watch_at = HOOK.steps.due_ns = 0
            before(at)
            with within():
                loss = net(x).float().pow(2).mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert tpmon.hook.problem() == ""
        return list(wire_settings.parse_settings(HOOK.steps.page))


@contextmanager
def turned(place: object, name: str, value: object) -> Iterator[None]:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextmanager
def called(function: Callable[..., object], value: object, back: object) -> Iterator[None]:
    function(value)
    try:
        yield
    finally:
        function(back)


def backward_alone() -> list[int]:
    """Leave autocast before the backward, as most loops do."""

    class Cast(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    return train(net=Cast(8, 1))


def captured() -> dict[str, object]:
    """Let tpmon record some steps, then the program, which prepares its profiler before it records."""
    seen: list[tuple[int, int, bool]] = []

    def look() -> None:
        words = wire_settings.parse_settings(HOOK.steps.page)
        if words:
            number, on = words[wire_settings.SET_NUMBER], words[wire_settings.SET_PROFILER]
            seen.append((number, on, torch._C._autograd._profiler_enabled()))

    def records(at: int) -> None:
        look()
        if at == 1:
            ask(1, w.KIND_PROBE)
        elif at == 5:
            ask(2, steps=6)

    train(before=records, steps=15)
    found: dict[str, object] = {"state": told()["state"], "ours": list(seen)}
    seen.clear()
    theirs = torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=20, active=1))

    def prepares(at: int) -> None:
        look()
        if at == 1:
            ask(3, w.KIND_PROBE)  # from now on the program's profilers are followed
        elif at == 5:
            theirs.start()
        elif at == 10:
            theirs.stop()

    train(before=prepares, steps=15)
    return {**found, "theirs": list(seen)}


def wrapped() -> list[int]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        tpmon.hook.uninstall()
        tpmon.hook.install()
        made = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(8, 1), bucket_cap_mb=3, find_unused_parameters=True
        )
        steps = HOOK.steps
        ddp = list(steps.ddp)

        def before(at: int) -> None:
            steps.ddp = ddp  # made before ``train`` installed the hook anew

        return train(net=made, before=before)
    finally:
        torch.distributed.destroy_process_group()


def switches() -> dict[str, object]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    threads = torch.get_num_threads()
    return {
        "plain": train(),
        "allow_tf32": train(turned(matmul, "allow_tf32", True)),
        "precision high": train(called(torch.set_float32_matmul_precision, "high", "highest")),
        "no TF32 in cuDNN": train(turned(cudnn, "allow_tf32", False)),
        "benchmark": train(turned(cudnn, "benchmark", True)),
        "cudnn.deterministic": train(turned(cudnn, "deterministic", True)),
        "deterministic": train(called(torch.use_deterministic_algorithms, True, False)),
        "anomaly": train(called(torch.autograd.set_detect_anomaly, True, False)),
        "bf16": train(within=lambda: torch.autocast("cpu", torch.bfloat16)),
        "fp16": train(within=lambda: torch.autocast("cpu", torch.float16)),
        "bf16 in the forward": backward_alone(),
        "math alone": train(sdpa_kernel(SDPBackend.MATH)),
        "flash or math": train(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])),
        "three threads": train(called(torch.set_num_threads, 3, threads)),
        "theirs": train(torch.profiler.profile()),
        "DDP": wrapped(),
        "captured": captured(),
        "threads": [threads, torch.get_num_interop_threads()],
        "problem": tpmon.hook.problem(),
    }


class Broken(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        torch._dynamo.graph_break()
        return torch.nn.functional.relu(y)


class Varied(torch.nn.Linear):
    """Do another thing in each step, which is compiled anew each time."""

    step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.step


def compiled() -> dict[str, object]:
    """Compile a model that breaks its graph, then one that is compiled again in each step."""
    found: dict[str, object] = {}
    found["broken"] = train(net=torch.compile(Broken(8, 1), backend="eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.config.recompile_limit = 2
    torch._dynamo.config.allow_unspec_int_on_nn_module = False
    varied = Varied(8, 1)
    found["varied"] = train(net=torch.compile(varied, backend="eager"), before=lambda at: setattr(varied, "step", at))
    return found


os.makedirs(FOLDER, exist_ok=True)
print(json.dumps(compiled() if "--compile" in sys.argv else switches()))
