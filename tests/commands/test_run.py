"""tpmon run, python -m tpmon.hook and the exported file: what they start is the program, with the hook in it.

torch is played by the package of test_hook_install, so that every Python here can have it.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.hook.test_hook_install import LOOP, ROOT, python, torch_like
from tpmon.commands import attach as attach_command
from tpmon.commands import hook as hook_file
from tpmon.commands import run
from tpmon.commands.hook import HookOptions
from tpmon.errors import NoTerminalError, UsageError
from tpmon.hook import __main__ as hook_main
from tpmon.probe.job import resolve as target
from tpmon.ui.terminal_io import terminal

__all__ = ["python", "torch_like"]

TELL = f"""{LOOP}
import json, os, sys
def tell():
    train(9)
    hook = sys.modules.get("tpmon.hook.installation")
    return [hook.HOOK.steps.steps, hook.HOOK.problem] if hook else []
"""
PROGRAM = TELL + "print(json.dumps([tell(), sys.argv[1:], os.getpid(), [p for p in sys.path if 'boot' in p]]))\n"
OTHERS = (
    TELL
    + """
import multiprocessing, subprocess
def child(queue):
    queue.put(tell())
if __name__ == "__main__":
    told = {"own": tell()}
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        told[method] = queue.get()
        process.join()
    command = [sys.executable, "-c", TELL + "print(json.dumps(tell()))"]
    told["subprocess"] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    print(json.dumps(told))
""".replace("TELL +", repr(TELL) + " +")
)


def environment(torch_like: Path, *more: str) -> dict[str, str]:
    path = os.pathsep.join([*more, str(torch_like)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def call(command: list[str], env: dict[str, str], code: int = 0) -> str:
    """Run a command that must write nothing to stderr; from /, where no tpmon lies."""
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def tpmon(*arguments: str) -> list[str]:
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = 'tpmon'; from tpmon.__main__ import main; sys.exit(main())"
    return [sys.executable, "-S", "-c", start, *arguments]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "tpmon-hook.zip"
    hook_file.write_export(str(path))
    return str(path)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def test_run_becomes_the_program_with_the_hook_in_it(python, torch_like, script):
    command = tpmon("run", "--", python, script, "--lr", "3")
    with subprocess.Popen(command, env=environment(torch_like), stdout=subprocess.PIPE, text=True) as process:
        told = json.loads(process.communicate(timeout=120)[0])
    assert told == [[9, ""], ["--lr", "3"], process.pid, []]


def test_children_of_every_kind_have_it_too(torch_like, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(OTHERS)
    told = json.loads(call(tpmon("run", sys.executable, str(script)), environment(torch_like)))
    assert told == {kind: [9, ""] for kind in ("own", "fork", "spawn", "forkserver", "subprocess")}


def test_the_exported_file_does_the_same_without_tpmon(python, torch_like, script, exported, tmp_path):
    alone = tmp_path / "elsewhere" / "hook.zip"
    alone.parent.mkdir()
    shutil.copy(exported, alone)
    told = json.loads(call([python, script], environment(torch_like, str(alone))))
    assert (told[0], told[3]) == ([9, ""], [])
    # The Python of the tests has a tpmon, which only torch makes way for; the others have none.
    imports = "import torch, tpmon.hook" if python == sys.executable else "import tpmon.hook"
    program = f"{imports}; print(tpmon.hook.__file__)"
    where = call([python, "-c", program], environment(torch_like, str(alone))).strip()
    assert where.startswith(str(alone))


def test_the_command_that_uses_the_file_can_be_pasted(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hook_file.run(HookOptions(hook_file.EXPORT, "sp ace.zip")) == 0
    assert f"Use: PYTHONPATH='{tmp_path}/sp ace.zip' python train.py\n" in capfd.readouterr().out
    for name in ("a:b.zip", "a\x1b[31m.zip"):
        with pytest.raises(UsageError, match="PYTHONPATH cannot hold"):
            hook_file.run(HookOptions(hook_file.EXPORT, name))
    assert [path.name for path in tmp_path.iterdir()] == ["sp ace.zip"]


def test_a_tpmon_of_the_same_python_is_not_hidden_by_the_file(exported):
    done = call([sys.executable, "-c", "import tpmon; print(tpmon.__file__)"], environment(ROOT, exported))
    assert done.strip() == str(ROOT / "tpmon" / "__init__.py")


def test_a_file_that_could_not_be_written_whole_is_not_there(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UsageError, match="cannot write"):
            hook_file.write_export(str(tmp_path / "hook.zip"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def test_equal_hooks_make_equal_files_and_no_file_is_written_over(exported, tmp_path):
    again = tmp_path / "again.zip"
    hook_file.write_export(str(again))
    assert again.read_bytes() == Path(exported).read_bytes()
    with pytest.raises(UsageError, match="is there already"):
        hook_file.write_export(exported)
    with zipfile.ZipFile(again) as archive:
        names = set(archive.namelist())
        compressed = {one.compress_type for one in archive.infolist()}
    assert {"sitecustomize.py", "tpmon_awaits_torch.py", "lib/tpmon/hook/steps.py"} <= names
    assert compressed == {zipfile.ZIP_STORED}  # zlib is slow to import, and not everywhere


def test_python_m_is_the_same_process_with_its_flags(python, torch_like, script):
    command = [python, "-W", "error", "-m", "tpmon.hook", script, "-m", "5"]
    env = environment(torch_like, str(ROOT))
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        told = json.loads(process.communicate(timeout=120)[0])
    assert told == [[9, ""], ["-m", "5"], process.pid, []]
    shown = call([python, "-Werror", "-m", "tpmon.hook", "-c", "import sys; print(sys.warnoptions)"], env)
    assert shown == "['error']\n"


def test_python_m_without_a_program_or_with_flags_that_keep_it_out_says_so(torch_like):
    env = environment(torch_like, str(ROOT))
    for flags, word in (([], "usage:"), (["-E"], "keep the hook out"), (["-S"], "keep the hook out")):
        command = [sys.executable, *flags, "-m", "tpmon.hook"]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert word in done.stderr


@pytest.mark.parametrize("error", ["", "raise ValueError('theirs')"])
def test_a_users_own_sitecustomize_runs_as_ever(python, torch_like, tmp_path, error):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.theirs = __name__, __file__\n{error}\n")
    program = PROGRAM + "print(json.dumps(getattr(sys, 'theirs', None)))\n"
    command = [python, "-c", program]
    alone = environment(torch_like, str(tmp_path))
    without = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    with_hook = subprocess.run(tpmon("run", *command), env=alone, capture_output=True, text=True, check=False)
    assert json.loads(with_hook.stdout.splitlines()[0])[0] == [9, ""]
    assert with_hook.stdout.splitlines()[1] == without.stdout.splitlines()[1]
    assert with_hook.stderr == without.stderr


def test_programs_without_torch_import_next_to_nothing_of_it(torch_like):
    program = "import sys; print([name for name in sys.modules if 'tpmon' in name], len(sys.meta_path))"
    told = call(tpmon("run", sys.executable, "-S", "-c", program), environment(torch_like))
    bare = call([sys.executable, "-S", "-c", program], environment(torch_like))
    assert told == bare
    told = call(tpmon("run", sys.executable, "-c", program), environment(torch_like))
    assert told.startswith("['tpmon_awaits_torch']")


def test_exit_codes_and_signals_are_the_programs(torch_like):
    env = environment(torch_like)
    call(tpmon("run", "sh", "-c", "exit 37"), env, 37)
    call(tpmon("run", "sh", "-c", "kill -USR1 $$"), env, -signal.SIGUSR1)
    # Ignored by Python, and on: a program in a pipe is to end when its reader does.
    shown = call(tpmon("run", "grep", "SigIgn", "/proc/self/status"), env)
    assert not int(shown.split()[1], 16) & 1 << signal.SIGPIPE - 1


def test_stacks_are_allowed_in_every_process_with_torch_and_only_when_asked(torch_like):
    program = """
import ctypes, json
calls = []
class Library:
    def __init__(self, *_, **__): pass
    def prctl(self, *arguments):
        calls.append(arguments[0].value)
        return 0
ctypes.CDLL = Library
import torch
print(json.dumps(calls))
"""
    command = [sys.executable, "-c", program]
    assert json.loads(call(tpmon("run", "--allow-stacks", *command), environment(torch_like))) == [0x59616D61]
    assert json.loads(call(tpmon("run", *command), environment(torch_like))) == []


NSYS = """#!/bin/sh
# Play nsys: say how it was called, and run the program as a child.
echo "$@" > "$NSYS_SAID"
while [ "${1#-}" != "$1" ] || [ "$1" = profile ]; do shift; done
"$@"
"""


@pytest.fixture
def fake(tmp_path):
    """Return a folder with a program of that name in it."""
    place = tmp_path / "bin" / "nsys"
    place.parent.mkdir()
    place.write_text(NSYS)
    place.chmod(0o755)
    return place.parent


def test_run_nsys_starts_the_program_under_it_with_the_hook(fake, torch_like, tmp_path):
    said = tmp_path / "said"
    env = {**environment(torch_like), "PATH": f"{fake}:{os.environ['PATH']}", "NSYS_SAID": str(said)}
    command = tpmon("run", "--nsys", "--", sys.executable, "-c", PROGRAM, "--lr", "3")
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[:2] == [[9, ""], ["--lr", "3"]]
    assert "--capture-range=cudaProfilerApi --capture-range-end=repeat" in said.read_text()


def test_without_nsys_or_a_program_nothing_is_started(monkeypatch, fake):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="nsys is not in PATH"):
        run.become(run.parse_request(["--nsys", "python"]))
    monkeypatch.setenv("PATH", str(fake))
    for flag in ("--nsys", "--kineto"):
        with pytest.raises(UsageError, match="cannot run no-such-program"):
            run.become(run.parse_request([flag, "no-such-program"]))


def write_bare_script(folder: Path) -> str:
    script = folder / "job.sh"
    script.write_text("echo started\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "which program"),
        (["--"], "which program"),
        (["--cuda", "python"], "no option --cuda"),
        (["--nsys", "--kineto", "python"], "exclude each other"),
        (["--log", "x", "true"], "--attach alone"),
        (["no-such-program"], "cannot run no-such-program"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(arguments, word):
    with pytest.raises(UsageError, match=word):
        run.become(run.parse_request(arguments))


def test_what_is_no_program_is_refused_with_what_may_be_meant(tmp_path):
    script = write_bare_script(tmp_path)
    for command, try_this in (
        (["train.py"], "tpmon run -- python train.py"),
        (["DEVICES=0,1", "python", "a b.py"], "DEVICES=0,1 tpmon run -- python 'a b.py'"),
        (["API_TOKEN=abcdefgh9", "python"], "API_TOKEN=... tpmon run -- python"),
        ([script], f"tpmon run -- sh {script}"),
    ):
        with pytest.raises(UsageError) as refused:
            run.become(run.parse_request(command))
        assert refused.value.try_this == try_this


@pytest.fixture
def short():
    """Make a folder whose name leaves libkineto room for its socket."""
    with tempfile.TemporaryDirectory(prefix="tk", dir="/tmp") as folder:
        yield Path(folder)


def test_a_program_that_cannot_be_started_with_kineto_is_told_once_and_leaves_no_folder(tmp_path, short):
    script = write_bare_script(tmp_path)
    env = {**environment(ROOT), "TMPDIR": str(short)}
    command = [sys.executable, "-m", "tpmon", "run", "--kineto", "--", script]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.startswith("tpmon: --kineto:") for line in lines] == [True, False, False]
    assert lines[1].startswith(f"tpmon: cannot run {script}: it has no #! line")
    assert os.listdir(short) == []


def test_with_attach_too_no_folder_is_left_where_nothing_was_started(tmp_path, short, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    monkeypatch.setattr(terminal, "require_terminal", lambda: None)
    log = tmp_path / "run.log"
    for made, word in ((False, "no #! line"), (True, "cannot make the log")):
        if made:
            log.write_text("mine")
        arguments = ["--attach", "--kineto", "--log", str(log), write_bare_script(tmp_path)]
        with pytest.raises(UsageError, match=word):
            run.run(arguments)
        assert os.listdir(short) == []
        assert log.exists() is made


def test_the_program_gets_no_locale_that_python_chose_for_tpmon():
    coerced = {"LANG": "C", "LC_CTYPE": "C.UTF-8"}
    assert run.drop_coerced(coerced, [b"LANG=C"]) == {"LANG": "C"}
    assert run.drop_coerced(coerced, [b"LANG=C", b"LC_CTYPE=C.UTF-8"]) == coerced
    assert run.drop_coerced(coerced, []) == coerced
    other = {"LC_CTYPE": "de_DE.UTF-8"}
    assert run.drop_coerced(other, [b"LANG=C"]) == other


def test_the_flags_of_python_stay_and_the_module_goes():
    for before, after in (
        (["-W", "error", "-m", "tpmon.hook"], ["-W", "error"]),
        (["-um", "tpmon.hook"], ["-u"]),
        (["-X", "dev", "-umtpmon.hook"], ["-X", "dev", "-u"]),
        (["-BO", "-mtpmon.hook"], ["-BO"]),
        (["-B", "/x/tpmon/hook/__main__.py"], ["-B"]),
    ):
        assert hook_main.leave_module_out(before) == after


def test_options_end_where_the_program_begins():
    request = run.parse_request(["--allow-stacks", "--attach", "--log=a.log", "torchrun", "--log", "b", "t.py"])
    assert request.command == ["torchrun", "--log", "b", "t.py"]
    assert (request.allow_stacks, request.attach, request.log) == (True, True, "a.log")
    assert run.parse_request(["--", "--odd"]).command == ["--odd"]


def test_both_ways_put_the_same_folder_before_what_was_there():
    armed = run.arm({"PYTHONPATH": "/a:/b", "X": "1"}, allow_stacks=False)
    assert armed == {"PYTHONPATH": f"{run.BOOT}:/a:/b", "X": "1"}
    assert run.arm({"PYTHONPATH": ""}, allow_stacks=False) == {"PYTHONPATH": run.BOOT}  # an empty part is the cwd
    assert hook_main.find_boot() == run.BOOT


def attach(*command: str, log: Path, watch=lambda _job: 0) -> int:
    """Run with --attach where the terminal is said to be there and the screen is ``watch``."""
    arguments = ["--attach", "--log", str(log), "--", *command]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "require_terminal", lambda: None)
        patch.setattr(attach_command, "watch_on_screen", lambda job, _options: watch(job))
        return run.run(arguments)


def test_with_attach_the_end_of_the_program_is_that_of_tpmon(tmp_path, capfd):
    log = tmp_path / "run.log"
    assert attach("sh", "-c", "echo out; echo err >&2; exit 5", log=log) == 5
    assert log.read_text() == "out\nerr\n"
    assert log.stat().st_mode & 0o777 == 0o600
    told = capfd.readouterr()
    assert told.out == ""
    assert f"sh ended with exit code 5; what it printed: {log}" in told.err
    assert attach("sh", "-c", "kill -SEGV $$", log=tmp_path / "two.log") == 128 + signal.SIGSEGV
    assert "sh ended by SIGSEGV" in capfd.readouterr().err


@pytest.mark.parametrize("code", [0, 143], ids=["left", "ended badly"])
def test_a_screen_that_ends_leaves_the_program_running_and_tells_how(tmp_path, capfd, monkeypatch, code):
    monkeypatch.setattr(target, "find_job", lambda pid: pid)
    watched: list[int] = []
    log = tmp_path / "run.log"
    assert attach("sleep", "100", log=log, watch=lambda pid: watched.append(pid) or code) == code
    try:
        assert os.getsid(watched[0]) == watched[0]  # a hang-up of this terminal is not its own
        assert f"the training goes on: tpmon attach {watched[0]} shows it" in capfd.readouterr().err
    finally:
        os.kill(watched[0], signal.SIGKILL)
        os.waitpid(watched[0], 0)


def test_with_attach_nothing_is_started_that_could_not_be_watched_or_kept(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("mine")
    with pytest.raises(UsageError, match="cannot make the log"):
        attach("touch", str(tmp_path / "started"), log=log)
    assert log.read_text() == "mine"

    with pytest.raises(NoTerminalError) as refused:
        run.run(["--attach", "touch", str(tmp_path / "started")])
    assert refused.value.try_this.startswith("leave --attach out"), "run has no --once and no --plain"
    assert not (tmp_path / "started").exists()
