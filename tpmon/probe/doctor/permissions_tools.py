"""Say whether the programs and devices beside /proc answer: py-spy, the kernel's log, the clipboard."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Callable, Mapping

from tpmon.model.known import Known, Missing
from tpmon.model.results.doctor import Access, Check
from tpmon.model.text.redaction import admit_text
from tpmon.own_command import call_as_root
from tpmon.probe.doctor.rules import make_check
from tpmon.probe.host.kernel_log import try_log
from tpmon.probe.spy.child import Outcome, SpyChild, find_spy, install_spy

SPY_S = 5.0
_OLDEST_SPY = (0, 4)
"""Python 3.13 is known from here on; tpmon's own package asks for it."""
_VERSION = re.compile(r"py-spy (\d+)\.(\d+)[\w.]*")
_TMUX_S = 2.0
ALLOW_CLIPBOARD = "tmux set-option -s set-clipboard on"


def judge_spy(path: Known[str], outcome: Known[Outcome], privileges: str, install: str) -> Check:
    """Say whether py-spy is there, starts, and is new enough.

    ``privileges`` are its file's own, or ""; ``install`` is the command that puts a new one there.
    """
    if isinstance(path, Missing):
        return make_check("py-spy", Access.ABSENT, path.reason, install, needed=True)
    reinstall = f"{install} --force-reinstall" if " install " in install else install
    if isinstance(outcome, Missing):
        why = f"{path} cannot be started: {outcome.reason}"
        return make_check("py-spy", Access.DENIED, why, reinstall, needed=True)
    if outcome.late:
        why = f"{path} --version gave no answer within {SPY_S:g} s"
        return make_check("py-spy", Access.UNKNOWN, why, f"{path} --version", needed=True)
    said = admit_text(outcome.output.decode("utf-8", "replace").strip(), 80)
    found = _VERSION.match(said)
    if outcome.status or found is None:
        told = admit_text(outcome.errors.decode("utf-8", "replace").strip().partition("\n")[0], 120)
        why = f"{path} does not work: {told or said or f'status {outcome.status}'}"
        return make_check("py-spy", Access.DENIED, why, reinstall, needed=True)
    words = f"{found.group()} at {path}{f' ({privileges})' if privileges else ''}"
    if (int(found[1]), int(found[2])) < _OLDEST_SPY:
        why = f"{words}; newer Pythons ask for {'.'.join(map(str, _OLDEST_SPY))} or newer"
        return make_check("py-spy", Access.ALLOWED, why, install, needed=True)
    return make_check("py-spy", Access.ALLOWED, words, needed=True)


def read_privileges(path: str) -> str:
    """Say whether the file of a program brings rights of its own: setuid root, or capabilities."""
    try:
        found = os.stat(path)
        if found.st_mode & stat.S_ISUID and found.st_uid == 0:
            return "setuid root"
        os.getxattr(path, "security.capability")
    except OSError:
        return ""  # none, which is the rule
    return "with capabilities of its own"


def check_spy(find: Callable[[], Known[str]] = find_spy) -> Check:
    """Find py-spy and have it say its version."""
    path = find()
    outcome: Known[Outcome] = Missing("not started")
    if isinstance(path, Missing):
        return judge_spy(path, outcome, "", install_spy())
    try:
        outcome = SpyChild().run((path, "--version"), SPY_S)
    except OSError as error:
        outcome = Missing(error.strerror or str(error))
    return judge_spy(path, outcome, read_privileges(path), install_spy())


def judge_log(trial: Known[int], fix: str) -> Check:
    """Say whether the kernel's log may be read, with its words on GPUs and killed processes.

    ``fix`` is what reads it, "" for nothing.
    """
    if isinstance(trial, Missing):
        why = f"GPU faults (Xid) and killed processes in the kernel's log: {trial.reason.lower()}"
        return make_check("kernel-log", Access.DENIED, why, fix)
    return make_check(
        "kernel-log", Access.ALLOWED, "GPU faults (Xid) and killed processes in the kernel's log"
    )


def check_log(whom: str) -> Check:
    """Ask the kernel for the size of its log."""
    return judge_log(try_log(), call_as_root(f"bundle {whom}"))


def judge_clipboard(environment: Mapping[str, str], tmux: Known[str]) -> Check:
    """Say whether ``y`` reaches the clipboard; ``tmux`` is the value of its set-clipboard."""
    if not environment.get("TMUX"):
        if environment.get("STY"):
            why = "GNU screen passes nothing on to the clipboard; what is copied is printed on exit"
            return make_check("clipboard", Access.DENIED, why)
        why = "no terminal tells whether it takes OSC 52; what is copied is printed on exit, too"
        return make_check("clipboard", Access.UNKNOWN, why)
    if isinstance(tmux, Missing):
        return make_check("clipboard", Access.UNKNOWN, f"tmux: {tmux.reason}")
    if tmux == "off":
        why = "tmux keeps what is copied in its own buffer (set-clipboard off)"
        return make_check("clipboard", Access.DENIED, why, ALLOW_CLIPBOARD)
    return make_check("clipboard", Access.ALLOWED, f"tmux passes it on (set-clipboard {tmux})")


def check_clipboard(environment: Mapping[str, str]) -> Check:
    """Ask tmux, where tpmon runs in one, what it does with the clipboard."""
    answer: Known[str] = Missing("not asked")
    if environment.get("TMUX"):
        try:
            done = subprocess.run(
                ("tmux", "show-options", "-sv", "set-clipboard"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TMUX_S,
                check=False,
            )
            text = admit_text(done.stdout.decode("utf-8", "replace").strip(), 40)
            answer = text or Missing(f"it refused ({done.returncode})")
        except subprocess.TimeoutExpired:
            answer = Missing(f"no answer within {_TMUX_S:g} s")
        except OSError as error:
            answer = Missing(error.strerror or str(error))
    return judge_clipboard(environment, answer)
