"""The limits of tpmon's own process: threads it may start, and its place behind the training.

A container has a limit of its own (pids.max of its control group), a user another one (ulimit -u). Who
shares them with tpmon is held by them too: the job may fail at its next loader worker.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading

from tpmon.errors import UsageError
from tpmon.model.known import is_known
from tpmon.probe.base.cgroup_tree import JobGroups
from tpmon.probe.base.procread import PROC, read_file

NICENESS = 10
"""Of what packs a trace: the training beside it comes first."""
_NO_THREAD = "can't start new thread"
"""What CPython says, whatever the reason (Modules/_threadmodule.c)."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        UsageError: where the machine lets none be started.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise explain_limit(error) or error from None


def explain_limit(error: BaseException, proc: str = PROC) -> UsageError | None:
    """Turn the failure to start a thread into what used the limit up; None for any other error."""
    if not isinstance(error, RuntimeError) or _NO_THREAD not in str(error):
        return None
    limits = [one for one in (_say_group_limit(proc), _say_user_limit()) if one]
    said = ", ".join(limits) or "the machine, or its memory limit, lets none be made"
    return UsageError(
        f"no thread can be started: {said}; the job may fail for the same reason, at its next worker",
        "end what is left over, or raise the limit (docker run --pids-limit, TasksMax=, ulimit -u)",
    )


def _say_group_limit(proc: str) -> str:
    """Say how full the fullest control group above tpmon is; "" where none with a limit may be seen."""
    group = JobGroups((os.getpid(),), proc).common("pids")
    found: list[tuple[int, str]] = []
    for one in group.lineage() if is_known(group) else ():
        try:
            current = int(read_file(f"{one.directory}/pids.current", 64))
            most = int(read_file(f"{one.directory}/pids.max", 64))
        except (OSError, ValueError):
            continue  # the root has no such files, and "max" is no limit
        said = f"{current} of {most} processes and threads of {one.label()} are used (pids.max)"
        found.append((most - current, said))
    return min(found)[1] if found else ""


def _say_user_limit() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return "" if soft == resource.RLIM_INFINITY else f"this user may have {soft} (ulimit -u)"


def step_aside() -> None:
    """Let tpmon never push a training thread off its CPU when it wakes up.

    A SCHED_BATCH task has its fair share but does not preempt on wake-up (sched(7)). Threads and
    children started later inherit it. Call before the first thread is started.
    """
    with contextlib.suppress(OSError):  # a sandbox may refuse it; tpmon then runs as any program
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def step_back() -> None:
    """Leave the CPUs to the training: this thread packs what was written, and then ends."""
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
        os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
