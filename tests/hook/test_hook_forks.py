"""What the hook holds of a device is never freed in a forked child: its end there would abort the child."""

import json

import pytest

from tests.hooks import run_program
from tests.torch_build import needs_torch

pytestmark = needs_torch

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
    assert told["problem"] == ""
    assert told["ends"] == 0
