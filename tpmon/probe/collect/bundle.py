"""Read what a ticket needs beside Frames and stacks: versions, processes, the job's log, the cards.

Command lines and logs are redacted here, where they are read (``model.text.redaction``); of the environment
only the variables that affect training speed are read at all (``procread``).
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from tpmon import __version__
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.results.doctor import point_to
from tpmon.model.text.redaction import HIDDEN, admit_text, hide_lines, hide_words
from tpmon.model.units import clean_text
from tpmon.probe.base.procread import PROC, read_or, read_text
from tpmon.probe.base.worker import read_within
from tpmon.probe.host.machine import pick_lines, read_log
from tpmon.probe.host.output import OutputReader, read_more
from tpmon.probe.job.job import Job, Member

LOG_LINES = 400
_COMMAND_CHARS = 2000
_SMI_S = 20.0
_MOST_SMI_BYTES = 4 << 20
_MOST_PROCESSES = 600


def list_versions(job: Job) -> tuple[tuple[str, Known[str]], ...]:
    """Return the versions of the software involved, from files; nothing of the job is imported."""
    return (
        *list_own_versions(),
        ("Python of the job", job.python_version),
        ("torch of the job", job.torch_version),
    )


def list_own_versions() -> tuple[tuple[str, Known[str]], ...]:
    """Return the versions of tpmon and of the machine that it runs on."""
    system = os.uname()
    named = read_or("", lambda: platform.freedesktop_os_release().get("PRETTY_NAME", "?"))
    driver = read_text(f"{PROC}/driver/nvidia/version", 4096).partition("\n")[0].strip()
    return (
        ("tpmon", __version__),
        ("Python of tpmon", platform.python_version()),
        ("kernel", f"{system.sysname} {system.release} {system.machine}"),
        ("system", admit_text(named, 100) or Missing("no os-release file")),
        ("NVIDIA driver", admit_text(driver, 200) or Missing("no NVIDIA driver shows itself here")),
        ("tpmon runs", sys.executable),
    )


def describe_processes(job: Job) -> Iterator[str]:
    """Describe each process of a job: its part, command line and relevant environment, redacted."""
    for member in job.members[:_MOST_PROCESSES]:
        yield f"{member.identity.pid} {_name(member)}, started {member.started.isoformat(timespec='seconds')}"
        fact = job.facts.get(member.identity.pid)
        words = hide_words(fact.argv) if fact else ()
        command = " ".join(word if word.endswith(HIDDEN) else shlex.quote(word) for word in words)
        yield f"  command: {clean_text(command, _COMMAND_CHARS) or 'not readable'}"
        if isinstance(member.environment, Missing):
            yield f"  environment: {member.environment.reason}"
        elif member.environment:
            settings = [f"{one.name}={one.value}" for one in member.environment]
            yield f"  environment: {clean_text(' '.join(settings), _COMMAND_CHARS)}"
    if len(job.members) > _MOST_PROCESSES:
        more = len(job.members) - _MOST_PROCESSES
        yield f"and {more} more {'process' if more == 1 else 'processes'}"


def _name(member: Member) -> str:
    rank = f" {member.rank}" if is_known(member.rank) else ""
    worker = f" worker {member.worker}" if is_known(member.worker) else ""
    role = "rank" if member.role is Role.WORKER else member.role.value
    return f"{role}{rank}{worker} ({member.label})"


def read_logs(pids: Sequence[int]) -> Iterator[str]:
    """Read the last lines of every log file that the job writes itself; OSError where there is none."""
    samples = OutputReader().read(pids)
    if not samples:
        raise FileNotFoundError(2, "no process of the job writes its output to a file")
    for sample in samples:
        yield f"== {sample.path} (descriptor {sample.fd} of {sample.pid})"
        lines = read_more(sample, LOG_LINES)
        yield from (lines if is_known(lines) else (f"not readable: {lines.reason}",))


def read_kernel_lines() -> tuple[str, ...]:
    """Return the kernel log's lines on GPUs, memory, storage and hung tasks, or raise PermissionError."""
    log = read_log()
    if isinstance(log, Missing):
        raise PermissionError(1, point_to(log.reason.lower(), "kernel-log"))
    return pick_lines(log) or ("nothing in the kernel's log concerns GPUs, memory, storage or hung tasks",)


def _call_smi(program: str) -> str:
    process = subprocess.Popen(
        (program, "-q"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_SMI_S)
    except subprocess.TimeoutExpired:
        # One that hangs in the driver cannot be killed, so it is not waited for.
        process.kill()
        raise TimeoutError(110, f"nvidia-smi gave no answer within {_SMI_S:g} s") from None
    return output[:_MOST_SMI_BYTES].decode("utf-8", "replace")


def read_cards() -> tuple[str, ...]:
    """Return what ``nvidia-smi -q`` says, redacted; OSError for no such program or no answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError(2, "no nvidia-smi on this machine")
    text = read_within(_SMI_S + 1.0, lambda: _call_smi(program))
    if isinstance(text, Missing):
        raise TimeoutError(110, text.reason)
    return tuple(clean_text(line, _COMMAND_CHARS) for line in hide_lines(text.splitlines()))
