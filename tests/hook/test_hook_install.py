"""Installing the hook: before and after torch, on every Python here, away again without a trace.

torch is played by a package of its four patched modules, so that every version of Python can have it.
"""

import ast
import json
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

from tests.hooks import ROOT, run_program

VERSIONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]

TORCH = {
    "__init__.py": "__version__ = '9.9'\nfrom . import autograd, optim, utils\nfrom .amp import grad_scaler\n",
    "optim/__init__.py": "from . import optimizer\n",
    "optim/optimizer.py": """
from collections import OrderedDict
_global_optimizer_post_hooks = OrderedDict()
class Optimizer:
    def step(self):
        for hook in _global_optimizer_post_hooks.values():
            hook(self, (), {})
def register_optimizer_step_post_hook(hook):
    _global_optimizer_post_hooks[len(_global_optimizer_post_hooks)] = hook
""",
    "utils/__init__.py": "from . import data\n",
    "utils/data/__init__.py": "from . import dataloader\n",
    "utils/data/dataloader.py": """
class _BaseDataLoaderIter:
    def __init__(self, batches):
        self.batches = iter(batches)
    def __iter__(self):
        return self
    def __next__(self):
        return next(self.batches)
""",
    "autograd/__init__.py": """
from .graph import _engine_run_backward
def backward():
    return _engine_run_backward((), accumulate_grad=True)
""",
    "autograd/graph.py": "def _engine_run_backward(outputs, accumulate_grad):\n    return outputs\n",
    "amp/__init__.py": "",
    "amp/grad_scaler.py": "class GradScaler:\n    def update(self):\n        return 5\n",
}

LOOP = """
def train(number):
    import torch
    optimizer = torch.optim.optimizer.Optimizer()
    for _ in torch.utils.data.dataloader._BaseDataLoaderIter(range(number)):
        torch.autograd.backward()
        optimizer.step()
"""

REPORT = """
import json, os, sys
from tpmon.hook.installation import HOOK
names = [os.readlink("/proc/self/fd/" + n) for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n) or os.path.islink("/proc/self/fd/" + n) and int(n) > 999]
print(json.dumps({
    "steps": HOOK.steps.steps, "batches": HOOK.steps.batches, "patches": HOOK.steps.patches,
    "version": list(sys.version_info[:2]), "problem": tpmon.hook.problem(), "finders": [type(f).__name__ for f in sys.meta_path],
    "pages": sorted(n for n in names if "tpmon" in n),
}))
"""


@cache
def find_pythons() -> dict[str, str]:
    """Find the Pythons of this machine, one of each version."""
    found = {}
    for version in VERSIONS:
        path = shutil.which(f"python{version}")
        candidates = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        for candidate in ([path] if path else []) + [str(one) for one in candidates]:
            asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
            if done.stdout.strip() == version:
                found[version] = candidate
                break
    return found


OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(
    params=[pytest.param(one, marks=() if one == OWN else pytest.mark.long) for one in dict.fromkeys((*VERSIONS, OWN))]
)
def python(request):
    """Give the Python that runs the tests, and the others of this machine for make test-pythons."""
    found = sys.executable if request.param == OWN else find_pythons().get(request.param)
    return found or pytest.skip(f"no Python {request.param} here")


@pytest.fixture(scope="session")
def torch_like(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name, text in TORCH.items():
        path = folder / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(python: str, torch_like: Path, program: str, *flags: str) -> dict[str, object]:
    """Run a program with tpmon and torch-like importable; it must write nothing but its report."""
    return json.loads(run_program(program, python=python, flags=flags, site=torch_like))


BEFORE = "import tpmon.hook, torch\n"
AFTER = "import torch, tpmon.hook\n"
ASKED = "import tpmon.hook, importlib.util\nimportlib.util.find_spec('torch')\nimport torch\n"
PARTLY = "import torch.optim.optimizer\nimport tpmon.hook\n"


@pytest.mark.parametrize("order", [BEFORE, AFTER, ASKED, PARTLY], ids=["before", "after", "asked", "partly"])
def test_the_hook_counts_whichever_is_imported_first(python, torch_like, order):
    report = run(python, torch_like, order + LOOP + "train(20)\n" + REPORT, "-W", "error")
    assert (report["steps"], report["batches"], report["patches"], report["problem"]) == (20, 20, 15, "")
    assert "Arrival" not in report["finders"]
    assert {str(name) for name in report["pages"]} == {"/memfd:tpmon (deleted)", "/memfd:tpmon-ctl (deleted)"}
    assert len(report["pages"]) == (2 if report["version"] >= [3, 13] else 4)


def test_it_opens_its_two_pages_and_no_other_descriptor(python, torch_like):
    program = f"""import ctypes, json, mmap, os, sys, torch
def count():
    return len(os.listdir("/proc/self/fd"))
before = count()
import tpmon.hook
{LOOP}train(20)
hooked = count()
tpmon.hook.uninstall()
print(json.dumps([sys.version_info >= (3, 13), hooked - before, count() - before]))
"""
    without_copies, opened, left = run(python, torch_like, program)
    # Before 3.13 each map of Python keeps a descriptor of its own.
    assert (opened, left) == (2 if without_copies else 4, 0)


@pytest.fixture
def beside(python, torch_like, tmp_path):
    """Run a program beside a package whose one module is played; add whether what is ``wrapped`` was given back."""

    def run_beside(module: str, source: str, program: str, wrapped: str) -> object:
        path = tmp_path / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True)
        path.write_text(source)
        whole = f"""
import json, sys, types, torch
sys.path.insert(0, {str(tmp_path)!r})
sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
{program}
tpmon.hook.uninstall()
print(json.dumps([*told, hasattr({wrapped}, "__wrapped__")]))
"""
        return run(python, torch_like, whole)

    return run_beside


MEGATRON = """
def custom_backward(output, grad_output):
    return "from the engine"
def backward_step():
    return custom_backward(1, None)
"""


@pytest.mark.parametrize("late", [False, True])
def test_the_backwards_of_megatron_are_seen(beside, late):
    """They call the engine itself: without this, micro-batches would be batches that nothing followed."""
    imports = ["import tpmon.hook", "from megatron.core.pipeline_parallel import schedules"]
    program = f"""
{chr(10).join(reversed(imports) if late else imports)}
def train(number):
    optimizer = torch.optim.optimizer.Optimizer()
    batches = torch.utils.data.dataloader._BaseDataLoaderIter(range(8 * number))
    for _ in range(number):
        for _ in range(8):
            next(batches)
            assert schedules.backward_step() == "from the engine"
        optimizer.step()
    next(batches, None)
train(20)
from tpmon.hook.installation import HOOK
told = [HOOK.steps.steps, HOOK.steps.eval_steps, HOOK.steps.backwards, HOOK.patches.missing(), HOOK.problem]
"""
    module, wrapped = "megatron.core.pipeline_parallel.schedules", "schedules.custom_backward"
    told = beside(module, MEGATRON, program, wrapped)
    assert told == [20, 0, 160, [], "", False]


DEEPSPEED = """
class DeepSpeedEngine:
    def __init__(self, seen):
        self.seen, self.at, self._step_applied = seen, 0, False
    def step(self):
        self.at += 1
        if self.at % 2 == 0:
            self._take_model_step(None)
    def _take_model_step(self, lr_kwargs):
        self._step_applied = self.at % 10 != 0
        if self._step_applied and self.seen:
            from torch.optim.optimizer import Optimizer
            Optimizer().step()
            Optimizer().step()
"""


@pytest.mark.parametrize("seen", [True, False], ids=["torch's optimizer", "an optimizer of its own"])
def test_the_updates_that_deepspeed_leaves_out_are_seen(beside, seen):
    """Its scaler has no update(): without this, such a step would be a part of the next one."""
    program = f"""
import tpmon.hook
from deepspeed.runtime.engine import DeepSpeedEngine
from tpmon.hook.installation import HOOK
engine = DeepSpeedEngine({seen})
for _ in torch.utils.data.dataloader._BaseDataLoaderIter(range(40)):
    torch.autograd.backward()
    engine.step()
told = [HOOK.steps.steps, HOOK.steps.skipped, HOOK.steps.optimizer_calls, HOOK.problem]
"""
    told = beside("deepspeed.runtime.engine", DEEPSPEED, program, "DeepSpeedEngine._take_model_step")
    assert told == [20, 4, 32 if seen else 0, "", False]


SCALERS = """
class ConstantGradScaler:
    def update(self, found_inf):
        pass
class DynamicGradScaler(ConstantGradScaler):
    def update(self, found_inf):
        self.found = found_inf
"""


@pytest.mark.parametrize("scaler", ["ConstantGradScaler", "DynamicGradScaler"])
def test_the_updates_that_megatron_leaves_out_are_seen(beside, scaler):
    """Its scaler is told before the update; of two optimizers of one step, each has one."""
    program = f"""
import tpmon.hook
from megatron.core.optimizer import grad_scaler
from tpmon.hook.installation import HOOK
scalers = [grad_scaler.{scaler}(), grad_scaler.{scaler}()]
for number in torch.utils.data.dataloader._BaseDataLoaderIter(range(20)):
    torch.autograd.backward()
    overflow = number % 5 == 0
    for one in scalers:
        one.update(overflow)
    if not overflow:
        torch.optim.optimizer.Optimizer().step()
told = [HOOK.steps.steps, HOOK.steps.skipped, HOOK.steps.updates, HOOK.steps.optimizer_calls, HOOK.problem]
"""
    told = beside("megatron.core.optimizer.grad_scaler", SCALERS, program, f"grad_scaler.{scaler}.update")
    assert told == [20, 4, 20, 16, "", False]


def test_without_torch_nothing_is_made_and_nothing_breaks(python, torch_like):
    report = run(python, torch_like, "import tpmon.hook, email, json\n" + REPORT)
    assert (report["steps"], report["patches"], report["pages"], report["problem"]) == (0, 0, [], "")


def test_a_forked_child_counts_its_own_steps(python, torch_like):
    program = f"""{BEFORE}{LOOP}
import os, sys
train(5)
read, write = os.pipe()
if os.fork() == 0:
    train(7)
    os.dup2(write, 1)
{textwrap.indent(REPORT, "    ")}
    sys.stdout.flush()
    os._exit(0)
os.wait()
import json
from tpmon.hook.installation import HOOK
print(json.dumps({{"child": json.loads(os.read(read, 9999)), "steps": HOOK.steps.steps}}))
"""
    report = run(python, torch_like, program, "-W", "ignore")
    assert (report["child"]["steps"], report["steps"], report["child"]["problem"]) == (7, 5, "")


@pytest.mark.parametrize("order", [BEFORE, AFTER])
def test_uninstalling_puts_back_what_was_there(torch_like, order):
    program = f"""{order}{LOOP}
import json
tpmon.hook.uninstall()
from torch.optim import optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter
def places():
    return [_BaseDataLoaderIter.__next__, torch.autograd._engine_run_backward,
            torch.autograd.graph._engine_run_backward, torch.amp.grad_scaler.GradScaler.update,
            list(optimizer._global_optimizer_post_hooks.values())]
clean = places()
whose = {{one.__code__.co_filename for one in clean[:-1]}}
same = []
for _ in range(500):
    tpmon.hook.install()
    train(3)
    tpmon.hook.uninstall()
    same.append(places() == clean)
tpmon.hook.install()
def print_nothing(*_):
    pass
def theirs(self):
    return original(self)
original = _BaseDataLoaderIter.__next__
_BaseDataLoaderIter.__next__ = theirs
optimizer.register_optimizer_step_post_hook(print_nothing)
tpmon.hook.uninstall()
import os
train(2)
print(json.dumps({{"same": all(same), "whose": [one for one in whose if "tpmon" in one], "theirs": _BaseDataLoaderIter.__next__ is theirs,
    "hooks": len(optimizer._global_optimizer_post_hooks), "problem": tpmon.hook.problem(),
    "open": len(os.listdir("/proc/self/fd"))}}))
"""
    report = run(sys.executable, torch_like, program)
    assert report.pop("open") <= 5
    assert report == {"same": True, "whose": [], "theirs": True, "hooks": 1, "problem": ""}


REGISTER = """from torch.optim import optimizer
class Handle:
    def remove(self):
        optimizer._global_optimizer_post_hooks.pop(1)
def register(hook):
    optimizer._global_optimizer_post_hooks[1] = hook
    return Handle()
optimizer.register_optimizer_step_post_hook = register
calls = []
"""
"""What torch offers where its dictionary of hooks is another's already."""


def test_hooks_that_others_registered_first_stay(torch_like):
    program = f"""import torch, json
{REGISTER}optimizer._global_optimizer_post_hooks[0] = lambda *a: calls.append(1)
theirs = optimizer._global_optimizer_post_hooks
import tpmon.hook
{LOOP}
train(4)
from tpmon.hook.installation import HOOK
steps = HOOK.steps.steps
tpmon.hook.uninstall()
train(3)
print(json.dumps({{"steps": steps, "calls": len(calls),
    "same": optimizer._global_optimizer_post_hooks is theirs, "hooks": len(theirs)}}))
"""
    assert run(sys.executable, torch_like, program) == {"steps": 4, "calls": 7, "same": True, "hooks": 1}


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_the_hook_turns_itself_off_under_an_optimizer_that_walks_through_hooks(torch_like, first):
    """To remove one of several raises in the optimizer's step: ours stays there till it is uninstalled."""
    theirs = "optimizer._global_optimizer_post_hooks[0] = lambda *a: calls.append(1)\n"
    program = f"""import torch, json
{REGISTER}{theirs if first == "theirs" else ""}
import tpmon.hook
{theirs if first == "ours" else ""}
from tpmon.hook.installation import HOOK
one = optimizer.Optimizer()
one.step()
HOOK.steps.last_ns = {{}}
one.step()
one.step()
problem, hooks = tpmon.hook.problem(), len(optimizer._global_optimizer_post_hooks)
tpmon.hook.uninstall()
left = len(optimizer._global_optimizer_post_hooks)
tpmon.hook.install()
one.step()
print(json.dumps({{"problem": problem[:9], "hooks": hooks, "left": left, "calls": len(calls),
    "counted": HOOK.steps.optimizer_calls, "again": tpmon.hook.problem()}}))
"""
    told = run(sys.executable, torch_like, program)
    assert told == {"problem": "TypeError", "hooks": 2, "left": 1, "calls": 4, "counted": 1, "again": ""}


@pytest.mark.parametrize("since", ["2.0", "2.3"])
def test_the_scaler_is_patched_once_wherever_it_lives(torch_like, tmp_path, since):
    """Before torch 2.3 it was in torch.cuda.amp; since then a class without an update() of its own is there."""
    site = tmp_path / "site"
    shutil.copytree(torch_like, site)
    folder = site / "torch" / "cuda" / "amp"
    folder.mkdir(parents=True)
    (site / "torch" / "cuda" / "__init__.py").write_text("from . import amp\n")
    (folder / "__init__.py").write_text("from .grad_scaler import GradScaler\n")
    home = site / "torch" / "amp" / "grad_scaler.py"
    if since == "2.0":
        home.replace(folder / "grad_scaler.py")
    else:
        own = "from torch.amp import grad_scaler\nclass GradScaler(grad_scaler.GradScaler): pass\n"
        (folder / "grad_scaler.py").write_text(own)
    init = site / "torch" / "__init__.py"
    init.write_text(init.read_text().partition("from .amp")[0] + "from . import amp, cuda\n")
    program = """import torch, json, sys
import tpmon.hook
from tpmon.hook.installation import HOOK
scaler = torch.cuda.amp.GradScaler()
for _ in range(3):
    torch.autograd.backward()
    scaler.update()
print(json.dumps([HOOK.steps.skipped, HOOK.patches.missing(), HOOK._arrival in sys.meta_path]))
"""
    assert run(sys.executable, site, program) == [3, [], False]


def test_the_scaler_of_fsdp_is_patched_when_the_program_imports_it(torch_like, tmp_path):
    """It has an update() of its own, and comes long after torch."""
    shutil.copytree(torch_like, tmp_path, dirs_exist_ok=True)
    for name in ("distributed/__init__.py", "distributed/fsdp/__init__.py"):
        path = tmp_path / "torch" / name
        path.parent.mkdir()
        path.touch()
    with open(tmp_path / "torch" / "__init__.py", "a") as file:
        file.write("from . import distributed\n")
    scaler = "from torch.amp.grad_scaler import GradScaler\nclass ShardedGradScaler(GradScaler):\n"
    scaler += "    def update(self):\n        return 7\n"
    path.with_name("sharded_grad_scaler.py").write_text(scaler)
    path.with_name("fully_sharded_data_parallel.py").write_text("class FullyShardedDataParallel: pass\n")
    program = f"""{AFTER}{LOOP}
import json, sys
import torch.distributed.fsdp.fully_sharded_data_parallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from tpmon.hook.installation import HOOK
scaler = ShardedGradScaler()
told = []
for _ in torch.utils.data.dataloader._BaseDataLoaderIter(range(10)):
    torch.autograd.backward()
    told.append(scaler.update())
counted = HOOK.steps.steps, HOOK.steps.skipped
clean = ShardedGradScaler.update
tpmon.hook.uninstall()
print(json.dumps({{"counted": counted, "told": told, "finders": sum(type(one).__name__ == "Arrival" for one in sys.meta_path),
    "back": ShardedGradScaler.update is clean.__wrapped__, "problem": tpmon.hook.problem()}}))
"""
    told = run(sys.executable, tmp_path, program)
    assert told == {"counted": [10, 10], "told": [7] * 10, "finders": 0, "back": True, "problem": ""}


@pytest.mark.parametrize("signalled", [False, True])
def test_a_capture_whose_code_is_gone_is_refused_and_steps_are_counted(torch_like, signalled):
    """As after an upgrade of tpmon, or where its folder was only there at the start."""
    program = f"""{AFTER}{LOOP}
import json, os, signal, sys, time
from tpmon.hook.installation import HOOK
train(5)
sys.modules["tpmon.hook.capture.capture"] = None
from tpmon.hook.bus import wire_capture as w
w.write_request(HOOK.steps.pages.mailbox, w.Request(77, w.KIND_CAPTURE, folder="/tmp", name="x"))
{"os.kill(os.getpid(), signal.SIGURG)" if signalled else "time.sleep(0.01)"}
train(5)
told = w.parse_progress(HOOK.steps.pages.page)
print(json.dumps({{"steps": HOOK.steps.steps, "problem": tpmon.hook.problem(), "number": told.request,
    "refused": told.state == w.STATE_REFUSED, "reason": told.reason[:51], "answer": list(HOOK.steps.pages.answers)}}))
"""
    assert run(sys.executable, torch_like, program) == {
        "steps": 10,
        "problem": "",
        "number": 77,
        "refused": True,
        "reason": "captures are not possible here: ModuleNotFoundError",
        "answer": [77, 3],
    }


LOST = """
import gc, os, sys
from tpmon.hook.bus.pages import Pages
way = sys.argv[1]
pages = Pages("", "", (-1, -1, -1))
os.closerange(3, 1000)
files = [open(sys.argv[2] + str(at), "w") for at in range(4)]
if way == "fork":
    child = os.fork()
    if child:
        sys.exit(os.waitpid(child, 0)[1] >> 8)
if way != "end":
    pages.close()
    assert not [name for name in os.listdir("/proc/self/fd") if int(name) >= 1000]
del pages
gc.collect()
for one in files:
    one.write("whole")
    one.close()
"""


@pytest.mark.parametrize("way", ["close", "fork", "end"])
def test_files_that_took_the_number_of_a_maps_descriptor_stay_open(python, tmp_path, way):
    """As after closerange in a program that makes a daemon of itself: Python closes a map's number with it."""
    run_program(LOST, way, str(tmp_path / "f"), python=python, flags=["-W", "ignore"])
    assert [path.read_text() for path in tmp_path.iterdir()] == ["whole"] * 4


BREAKS = {
    "the pages": "from tpmon.hook.bus import pages\npages.Pages = 5\n",
    "the clock": "train(10)\nHOOK.steps.last_ns = {}\n",
    "the ring": "train(10)\nHOOK.steps.page = HOOK.steps.published_ns = HOOK.steps.due_ns = 0\n",
    "the mailbox": "train(10)\nHOOK.steps.requests, HOOK.steps.due_ns = None, 0\n",
    "the patches": "train(10)\nHOOK.steps.last_ns = {}\nHOOK.steps.on_off = 5\n",
}


@pytest.mark.parametrize("part", BREAKS)
def test_the_loop_goes_on_when_a_part_of_the_hook_is_broken(torch_like, part):
    program = f"{AFTER}{LOOP}from tpmon.hook.installation import HOOK\n{BREAKS[part]}train(10)\n{REPORT}"
    report = run(sys.executable, torch_like, program)
    assert "Error" in str(report["problem"])
    assert report["steps"] in ((0,) if part == "the pages" else (10, 11))
    assert report["patches"] == (15 if part == "the patches" else 0)


@pytest.mark.parametrize("path", sorted((ROOT / "tpmon" / "hook").rglob("*.py")), ids=lambda path: path.stem)
def test_the_hook_is_valid_python_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_the_hook_imports_little_and_no_torch_and_the_tool_itself_is_not_hooked():
    program = "import sys; before = set(sys.modules); import tpmon.hook; print(*sorted(set(sys.modules) - before))"
    names = set(run_program(program, flags=["-S"]).split())
    assert not names & {"torch", "typing", "dataclasses", "ctypes", "re", "threading", "logging", "subprocess"}
    program = "import tpmon.probe.base.procread, tpmon.hook.bus.wire, sys; print('tpmon.hook.steps' in sys.modules)"
    assert run_program(program) == "False\n"


def test_the_finder_leaves_modules_as_they_are(torch_like):
    program = """
import json, tpmon.hook, torch, importlib.util
spec = torch.__spec__
print(json.dumps([type(spec.loader).__name__, "exec_module" in vars(spec.loader), torch.__file__[-17:],
                  importlib.util.find_spec("torch") is spec]))
"""
    assert run(sys.executable, torch_like, program) == ["SourceFileLoader", False, "torch/__init__.py", True]


def test_a_torch_that_fails_to_import_fails_as_before_and_may_come_later(tmp_path):
    (tmp_path / "torch.py").write_text("import os\nif not os.environ.get('DRIVER'): raise ImportError('no driver')\n")
    program = """
import json, tpmon.hook
errors = []
for _ in range(2):
    try:
        import torch
    except ImportError as error:
        errors.append(str(error))
import os, sys
waiting = [type(one).__name__ for one in sys.meta_path].count("Arrival")
os.environ["DRIVER"] = "yes"
from tpmon.hook import installation
arrived = []
installation.Patches.apply = lambda self: arrived.append(True)
import torch
print(json.dumps([errors, tpmon.hook.problem(), waiting, len(arrived)]))
"""
    assert run(sys.executable, tmp_path, program) == [["no driver", "no driver"], "", 1, 1]


@pytest.mark.parametrize("order", [BEFORE, AFTER])
def test_backwards_are_counted_in_a_torch_whose_engine_has_no_entry_of_its_own(torch_like, tmp_path, order):
    """Before torch 2.2 ``torch.autograd`` imports ``graph`` first, and defines ``backward`` afterwards."""
    site = tmp_path / "site"
    shutil.copytree(torch_like, site)
    (site / "torch/autograd/__init__.py").write_text("from . import graph\ndef backward():\n    return ()\n")
    (site / "torch/autograd/graph.py").write_text("")
    report = run(sys.executable, site, f"{order}{LOOP}train(4)\n{REPORT}")
    assert (report["steps"], report["problem"], report["patches"]) == (4, "", 15)
