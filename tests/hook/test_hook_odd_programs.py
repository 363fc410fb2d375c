"""Programs that do odd but legal things to torch, on a real torch, each in a process of its own with the hook."""

import json
import os
import sys
import textwrap

import pytest

from tests.hooks import run_program
from tests.torch_build import needs_torch

PYTHON = os.environ.get("HOOK_PYTHON", sys.executable)

pytestmark = needs_torch

BEGIN = """
import json, sys
import tpmon.hook, torch
from tpmon.hook import counters as counts, step_sample as watch
from tpmon.hook.installation import HOOK
watch._EVERY_NS, counts.SHORT_NS = 1, 0  # every other step is watched, however short
S = HOOK.steps

def model():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.01, foreach=False)

def loader(size=4, batches=20):
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(size * batches, 4)), batch_size=size)

def need_compile():
    try:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    except Exception as error:
        skip(f"torch.compile does not run here: {error}")

def skip(why):
    say(skipped=why)
    raise SystemExit(0)

def train(net, optimizer, batches=20):
    for (x,) in loader(batches=batches):
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def say(**told):
    print(json.dumps({"steps": S.steps, "problem": tpmon.hook.problem(), **told}))
"""


def run(program: str, *flags: str) -> dict[str, object]:
    flags = flags or ("-W", "ignore")
    told = json.loads(run_program(BEGIN + textwrap.dedent(program), python=PYTHON, flags=flags, silent=False))
    if "skipped" in told:
        pytest.skip(told["skipped"])
    return told


def test_code_of_the_program_that_the_watcher_would_run_never_raises_into_the_loop():
    told = run("""
        import os
        from tpmon.hook.bus import wire_settings as w

        folder, asked = os.path.dirname(tpmon.hook.__file__), []

        def sizes():
            return S.watcher._settings.words[w.SET_PARAMETERS : w.SET_OPTIMIZER_STATE + 1]

        class Odd(torch.nn.Parameter):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                if function.__name__ in ("numel", "element_size"):
                    raise NotImplementedError(function.__name__)
                return super().__torch_function__(function, types, args, kwargs or {})

        class Mode(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if sys._getframe(1).f_code.co_filename.startswith(folder):
                    asked.append(function.__name__)
                    raise NotImplementedError(function.__name__)
                return function(*args, **(kwargs or {}))

        train(*model(), 60)
        plain = sizes()
        net, optimizer = model()
        with Mode():
            train(net, optimizer, 60)
        moded = sizes()
        net[0].weight = Odd(net[0].weight.data)
        train(net, torch.optim.SGD(net.parameters(), lr=0.01, foreach=False), 60)
        odd = sizes()
        say(plain=plain, moded=moded, odd=odd, asked=asked, inputs=S.watcher.inputs)
        """)
    assert told == {
        "steps": 180,
        "problem": "",
        "plain": [100, 100, 0],
        "moded": [100, 100, 0],
        "odd": [-1, -1, -1],
        "asked": [],
        "inputs": ["float32[4, 4]"],
    }


@pytest.mark.long
def test_a_compiled_optimizer_step_and_a_batch_drawn_in_a_compiled_function_trace_no_hook_and_warn_of_none():
    told = run("""
        import warnings

        need_compile()
        net, optimizer = model()
        loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
        net(torch.ones(2, 4)).sum().backward()
        warnings.simplefilter("error", UserWarning)
        compiled = torch.compile(optimizer.step, backend="eager")
        for _ in range(3):
            compiled()
        before = S.optimizer_calls
        optimizer.zero_grad()
        step = torch.compile(lambda batches: net(next(batches)).sum(), backend="eager")
        batches = iter(loader)
        for _ in range(4):
            step(batches).backward()
            optimizer.step()
            optimizer.zero_grad()
        say(calls=[before, S.optimizer_calls], batches=S.batches)
        """)
    assert (told["calls"], told["batches"], told["problem"]) == ([3, 7], 4, "")


@pytest.mark.long
@pytest.mark.parametrize("whole", [True, False])
def test_an_optimizer_that_is_compiled_as_one_graph_is_not_ended_by_the_hook(whole):
    """Muon's step is traced as it is, with torch's loop over the hooks in it."""
    told = run(f"""
        if not hasattr(torch.optim, "Muon"):
            skip("no Muon")
        need_compile()
        weight = torch.nn.Parameter(torch.ones(4, 4))
        optimizer = torch.optim.Muon([weight], lr=0.01)
        (weight @ weight).sum().backward()
        step = torch.compile(optimizer.step, backend="eager", fullgraph={whole})
        for _ in range(3):
            step()
        compiled = S.optimizer_calls
        optimizer.step()
        say(moved=bool((weight != 1).any()), compiled=compiled, calls=S.optimizer_calls)
        """)
    assert (told["moved"], told["problem"]) == (True, "")
    assert (told["compiled"], told["calls"]) == ((0, 1) if whole else (3, 4))


def test_a_scaler_that_is_off_skips_no_update_where_the_hook_sees_no_optimizer():
    told = run("""
        class Plain:
            def __init__(self, net):
                self.net, self.param_groups = net, [{"params": list(net.parameters())}]

            def step(self):
                with torch.no_grad():
                    for one in self.net.parameters():
                        one -= 0.01 * one.grad

        if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
            skip("no scaler of torch.amp")
        net, _ = model()
        optimizer, scaler = Plain(net), torch.amp.GradScaler("cpu", enabled=False)
        for (x,) in loader():
            scaler.scale(net(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            net.zero_grad()
        say(told=[S.updates, S.skipped, S.steps])
        """)
    assert (told["told"], told["problem"]) == ([20, 0, 20], "")


# What the hook holds of a device is never freed in a forked child: its end there would abort the child.


CARD = """
import gc, json, mmap, multiprocessing, os, sys, threading, time
import tpmon.hook
import torch
from tpmon.hook import installation, step_sample as watch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # imports what asks for CUDA as it is built

MAIN = os.getpid()
ENDS = mmap.mmap(-1, 4096)  # shared with the children: how often each kind of object ended in one
made = {"Event": 0, "Stream": 0}

class OfDevice:
    def __init__(self):
        made[type(self).__name__] += 1
    def __del__(self):
        if os.getpid() != MAIN:
            ENDS[0] = min(ENDS[0] + 1, 255)

class Event(OfDevice):
    recorded = 0
    def __init__(self, enable_timing=False):
        super().__init__()
    def record(self, stream):
        Event.recorded += 1
    def query(self):
        return True
    def elapsed_time(self, other):
        return 1.0

class Stream(OfDevice):
    device = 0

STREAM = [Stream()]
cuda, compiled = torch.cuda, torch._C
cuda.is_initialized = lambda: os.getpid() == MAIN
cuda.Event = Event
cuda.current_stream = lambda: STREAM[0]
cuda.is_current_stream_capturing = lambda: False
compiled._cuda_getDevice = lambda: 0
compiled._cuda_getDeviceCount = lambda: 1
compiled._cuda_hasPrimaryContext = lambda device: True  # builds for CPU have none
kinds = {"all": {"current": 1 << 20, "peak": 1 << 20}}
names = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
compiled._cuda_memoryStats = lambda device: {**{n: kinds for n in names}, "num_alloc_retries": 0, "num_ooms": 0}
watch._EVERY_ON_CUDA_NS = 1

def loader(workers):
    return torch.utils.data.DataLoader(
        [torch.ones(4)] * 48, batch_size=4, num_workers=workers,
        multiprocessing_context="fork" if workers else None)

def epoch(workers=0, train=True):
    for batch in loader(workers):
        with torch.set_grad_enabled(train):
            loss = model(batch).sum()
        if train:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

def timer():
    return installation.HOOK.steps.watcher._timer

def fork(child):
    pid = os.fork()
    if not pid:
        child()
        sys.exit(0)  # by the interpreter's end, which frees what modules hold
    return os.waitpid(pid, 0)[1]

def collect():
    installation.HOOK.steps.watcher = None
    gc.collect()
"""

END = """
STREAM.append(None)
told = {"ends": ENDS[0], "made": made["Event"], "recorded": Event.recorded, "problem": tpmon.hook.problem()}
print(json.dumps(told), flush=True)
"""

CHILDREN = {
    "workers of three epochs and a validation": """
for _ in range(3):
    epoch(4)
epoch(4, train=False)
""",
    "a child that collects and ends as a program does": "epoch()\nassert fork(collect) == 0",
    "a child of a child": "epoch()\nassert fork(lambda: fork(collect)) == 0",
    "a child that trains": "epoch()\nassert fork(epoch) == 0",
    "a child of multiprocessing": """
epoch()
one = multiprocessing.get_context("fork").Process(target=collect)
one.start()
one.join()
assert one.exitcode == 0
""",
    "a child after the hook was taken out": "epoch()\ntpmon.hook.uninstall()\nassert fork(collect) == 0",
    "a child after the device failed": """
epoch()
source = "def record(self, stream): raise RuntimeError('CUDA error: device-side assert triggered')"
exec(compile(source, os.path.dirname(torch.__file__) + "/cuda/streams.py", "exec"))
Event.record = record
while timer() is not None:
    epoch()
assert fork(collect) == 0
""",
    "a child forked beside the loop": """
thread = threading.Thread(target=lambda: [fork(collect) for _ in range(5)])
thread.start()
while thread.is_alive():
    epoch()
""",
}


ONCE = ("workers of three epochs and a validation", "a child that collects and ends as a program does")


@pytest.mark.parametrize(
    "child", [pytest.param(one, marks=() if one in ONCE else pytest.mark.long) for one in CHILDREN]
)
def test_no_object_of_a_device_ends_in_a_forked_child(child):
    program = f"{CARD}\n{CHILDREN[child]}\n{END}"
    told = json.loads(run_program(program, flags=["-W", "ignore"], silent=False, OMP_NUM_THREADS="1").splitlines()[-1])
    assert told["recorded"] > 0, "no timer was alive"
    assert (told["problem"], told["ends"]) == ("", 0)
