"""Tell what a program is from its name and command line: launcher, shell, boundary, service. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache

from tpmon.model.frozen import dataclass
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import is_python_name

LABEL_LIMIT = 80
FORKSERVER = "forkserver"

_SHELLS = frozenset(
    ("sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "ash", "csh", "tcsh", "rbash", "busybox", "nu")
)
_SHELL_OPTIONS_WITH_VALUE = frozenset(("-o", "+o", "-O", "+O", "--rcfile", "--init-file"))
_PYTHON_OPTIONS_WITH_VALUE = frozenset(("-W", "-X", "--check-hash-based-pycs"))
_SESSION = re.compile(
    r"(tmux|screen|SCREEN|zellij|sshd|sshd-session|dropbear|mosh-server|login|raylet|gcs_server|slurmd)(:.*)?"
)
_JUPYTER_SERVER = re.compile(
    r"jupyter(hub)?(-(lab|notebook|server|labhub|nbclassic|singleuser))?"
    r"|jupyterlab|notebook|jupyter_server|jupyterhub\.singleuser|nbclassic"
)
_RAY_DAEMON = re.compile(r"/ray/(dashboard|autoscaler|_private)/(?!workers/)")
_SLURM_TASKS = re.compile(r"slurmstepd: \[[\d_+]+\.\d+\]")
_MPI = re.compile(r"(mpirun|mpiexec)(\.(hydra|mpich|openmpi))?|hydra_pmi_proxy|orte(run|d)|prte(run|d)?")
_OF_ONE_NODE = re.compile(r"slurmstepd\b|(?:hydra_pmi_proxy|orted|prted)$")
_LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch/distributed/run.py": "torchrun",
    "torch/distributed/launch.py": "torchrun",
    "accelerate-launch": "accelerate launch",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate/commands/launch.py": "accelerate launch",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed/launcher/launch.py": "deepspeed",
}


@dataclass(frozen=True, slots=True)
class Command:
    """Name what a command line runs; ``how``: "binary", "script", "module", "code" or "interactive"."""

    how: str
    name: str
    arguments: tuple[str, ...]


_WATCHERS = frozenset(("tpmon", "py-spy"))  # beside the ranks of one parent they would look like helpers


@dataclass(frozen=True, slots=True)
class Program:
    """Say what a program is to a training job.

    A ``boundary`` is never part of a job, and no job reaches across it: interactive shells, terminal and
    login servers, Jupyter servers (not their kernels), Ray daemons, Slurm steps that start no tasks (batch,
    extern, interactive), and watchers (tpmon, py-spy). A shell that runs a script is neither boundary nor
    member. ``launcher`` and ``service`` are names, or ""; a ``service`` serves a rank without training or
    loading. What starts the ranks of one node for a launcher elsewhere does not answer for them: its exit
    code says nothing of their ends (0 after a SIGKILL, seen with slurmstepd 22.05.8).
    """

    label: str
    shell: bool
    boundary: bool
    launcher: str
    answers: bool
    service: str
    spawned: bool
    compiles: bool


@lru_cache(maxsize=1024)
def identify(name: str, argv: tuple[str, ...]) -> Program:
    """Identify a program; ``name`` is its comm, ``argv`` may be empty when it was not readable."""
    command = parse_command(argv)
    shell = (os.path.basename(argv[0]).lstrip("-") if argv else name) in _SHELLS
    launcher = "" if shell else _find_launcher(name, argv, command)
    return Program(
        label=_label(name, command),
        shell=shell,
        boundary=_is_interactive(argv) if shell else not launcher and _is_server(name, argv, command),
        launcher=launcher,
        answers=not _OF_ONE_NODE.match(argv[0].rpartition("/")[2] if argv else name),
        service=_find_service(name, command),
        spawned=command.how == "code" and command.name.startswith("from multiprocessing.spawn import"),
        compiles=any("_inductor/compile_worker" in word for word in argv[1:4]),
    )


def parse_command(argv: Sequence[str]) -> Command:
    """Find the program in a command line, past the options of a Python interpreter."""
    if not argv:
        return Command("binary", "", ())
    if not is_python_name(argv[0]):
        return Command("binary", argv[0], tuple(argv[1:]))
    at = 1
    while at < len(argv):
        word = argv[at]
        rest = tuple(argv[at + 1 :])
        if word == "-" or not word.startswith("-"):
            return Command("script", word, rest)
        if word in _PYTHON_OPTIONS_WITH_VALUE:
            at += 2
            continue
        flag = "" if word[1] in "-WX" else next((letter for letter in word[1:] if letter in "cm"), "")
        if flag:
            value = word[word.index(flag) + 1 :]
            how = "module" if flag == "m" else "code"
            return Command(how, value or (rest[0] if rest else ""), rest if value else rest[1:])
        at += 1
    return Command("interactive", argv[0], ())


def _is_interactive(argv: Sequence[str]) -> bool:
    """Tell whether a shell is interactive: neither a script nor -c."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if word in _SHELL_OPTIONS_WITH_VALUE:
            at += 2
            continue
        if not word.startswith(("-", "+")) or (word[:2] != "--" and "c" in word):
            return False
        at += 1
    return True


def _is_server(name: str, argv: Sequence[str], command: Command) -> bool:
    """Tell whether people or jobs live below this process that are not one job."""
    title = os.path.basename(argv[0].split(" ", 1)[0]) if argv else ""
    if name == "slurmstepd" or _SESSION.fullmatch(name) or _SESSION.fullmatch(title):
        return True
    if name in _WATCHERS or title in _WATCHERS:
        return True
    if command.how not in ("script", "module"):
        return False
    if os.path.basename(command.name) in _WATCHERS:
        return True
    return bool(_JUPYTER_SERVER.fullmatch(os.path.basename(command.name)) or _RAY_DAEMON.search(command.name))


def _find_launcher(name: str, argv: Sequence[str], command: Command) -> str:
    """Name the launcher as its users do; "" for none."""
    base = os.path.basename(argv[0]) if argv else name
    if argv and _SLURM_TASKS.match(argv[0]):
        return "srun step"
    if base == "srun":
        return "srun"
    if _MPI.fullmatch(base):
        return "mpirun"
    last = os.path.basename(command.name)
    if last == "accelerate" or command.name == "accelerate.commands.accelerate_cli":
        return "accelerate launch" if "launch" in command.arguments[:2] else ""
    if command.how != "code":
        for key in (last, "/".join(command.name.split("/")[-3:])):
            if key in _LAUNCHERS:
                return _LAUNCHERS[key]
    return "torchrun" if name == "pt_elastic" else ""


def _find_service(name: str, command: Command) -> str:
    if name.startswith("torch_shm_manag"):
        return "torch_shm_manager"
    code = command.name if command.how == "code" else ""
    if code.startswith("from multiprocessing.resource_tracker"):
        return "resource tracker"
    return FORKSERVER if code.startswith("from multiprocessing.forkserver") else ""


def _label(name: str, command: Command) -> str:
    """Write what a person calls the program: script, module, or file name without its folder."""
    if command.how == "module":
        label = "Jupyter kernel" if command.name.startswith("ipykernel") else command.name
    elif command.how == "code":
        label = "python -c"
    elif command.how == "script":
        label = "python -" if command.name == "-" else os.path.basename(command.name)
    elif command.how == "interactive":
        label = f"{os.path.basename(command.name)} (no script)"
    else:
        label = os.path.basename(command.name.split(" ", 1)[0].rstrip(":")) or name
    return admit_text(label, LABEL_LIMIT)
