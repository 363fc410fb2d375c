"""Ask NVML, in a child process and within a deadline, whether the cards may be read."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Sequence

from tpmon.model.codec import CodecError
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.results.doctor import Access, Check
from tpmon.own_command import install_command
from tpmon.probe.base.procread import PROC, read_file, read_or
from tpmon.probe.doctor.rules import ANY_JOB, CAP_SYS_ADMIN, Own, make_check
from tpmon.probe.gpu.child_link import ChildLink, Listener, child_command
from tpmon.probe.gpu.mapping import kernel_has_driver
from tpmon.probe.gpu.nvml_queries import NO_PERMISSION, describe_code
from tpmon.probe.gpu.wire import CardLine, DriverLine, FailureLine, Line, decode_line
from tpmon.probe.proc.access import Caller, RuntimeKind, administer, parse_capability, read_caller

DEADLINE_S = 6.0  # the child needs 0.2 s; opening a sleeping driver takes seconds
_NEVER_S = 3600.0
EXPOSE_CARDS = "docker run --gpus all"
_NO_LIBRARY, _NOT_LOADED, _MISMATCH = 12, 9, 18
_PARAMETERS = "driver/nvidia/params"
_OPEN_COUNTERS = (
    "echo options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    " | sudo tee /etc/modprobe.d/nvidia-profiling.conf  # then restart the machine"
)


@dataclass(frozen=True, slots=True)
class NvmlAnswer:
    """Hold NVML's versions and cards, or why it ended; neither if it was late."""

    driver: Known[DriverLine]
    failure: Known[FailureLine]
    cards: tuple[CardLine, ...]


NOT_ASKED = NvmlAnswer(Missing("not asked"), Missing("not asked"), ())


def ask_nvml(limit_s: float = DEADLINE_S, command: Sequence[str] | None = None) -> NvmlAnswer:
    """Start the NVML child, await its first word of every card for ``limit_s``, and end it."""
    lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
    ended: list[str] = []

    def on_lines(raw: Sequence[bytes]) -> None:
        for one in raw:
            try:
                lines.put(decode_line(one))
            except CodecError:
                continue  # another version's; the deadline decides

    def on_end(how: str, _attempt: int) -> float:
        ended.append(how)
        return _NEVER_S

    link = ChildLink(command or child_command(), Listener(lambda: None, on_lines, on_end))
    link.start()
    driver: Known[DriverLine] = Missing("no answer in time: a driver that hangs, or a card that is lost")
    failure: Known[FailureLine] = Missing("none")
    cards: dict[int, CardLine] = {}
    end_s = time.monotonic() + limit_s
    try:
        while (left_s := end_s - time.monotonic()) > 0 and not is_known(failure):
            if is_known(driver) and len(cards) >= driver.cards:
                break
            try:
                line = lines.get(timeout=min(left_s, 0.1))
            except queue.Empty:
                if ended and lines.empty():
                    break
                continue
            driver = known_or(line.driver, driver)
            failure = known_or(line.failure, failure)
            if is_known(line.card):
                cards[line.card.index] = line.card
    finally:
        link.stop()
    if ended and not is_known(driver) and not is_known(failure):
        driver = Missing(f"the process of tpmon that asks it ended without a word ({ended[0]})")
    return NvmlAnswer(driver, failure, tuple(cards[index] for index in sorted(cards)))


def find_cards(caller: Caller, step: str, whom: str) -> str:
    """Return a command to show hidden cards (of Slurm job ``step``, if not ""), or to look for lost ones."""
    if step:
        return f"srun --overlap --pty --jobid={step} {caller.program} attach {whom}"
    if caller.runtime is RuntimeKind.ENGINE:
        return EXPOSE_CARDS
    return f"lspci | grep -i nvidia; {administer(caller, 'dmesg | grep -i nvrm')}"


def judge_nvml(answer: NvmlAnswer, kernel_driver: bool, caller: Caller, expose: str) -> Check:
    """Judge whether this machine's cards may be read; ``expose`` shows cards that this shell does not see."""
    xids = administer(caller, "dmesg | grep -i xid")
    if is_known(answer.failure):
        return _judge_failure(answer.failure, kernel_driver, caller)
    if isinstance(answer.driver, Missing):
        why = f"NVML: {answer.driver.reason}"
        return make_check("nvml", Access.UNKNOWN, why, xids)
    version = answer.driver.driver_version
    words = f"driver {version}" if is_known(version) else "NVML answers"
    if not answer.driver.cards:
        return make_check("nvml", Access.DENIED, f"{words}, but it shows no card to this shell", expose)
    silent = answer.driver.cards - len(answer.cards)
    lost = [card for card in answer.cards if is_known(card.lost)]
    if silent:
        why = f"{words}: {silent} of {answer.driver.cards} cards gave no answer in time"
        if lost:
            return make_check("nvml", Access.UNKNOWN, why, xids)
        # Each opening initialises an unused card, which takes seconds, unless something keeps it open.
        why += f": persistence mode may be off, and opening a card takes seconds then; if it is on: {xids}"
        return make_check("nvml", Access.UNKNOWN, why, administer(caller, "nvidia-smi -pm 1"))
    if lost:
        which = f"card {lost[0].index}: {lost[0].lost}"
        why = f"{words}: {len(lost)} of {answer.driver.cards} cards are lost ({which})"
        return make_check("nvml", Access.UNKNOWN, why, xids)
    refused = _name_refused(answer.cards)
    if refused:
        return make_check("nvml", Access.DENIED, f"{words}: no permission for {refused}", _as_root(caller))
    cards = "1 card answers" if answer.driver.cards == 1 else f"{answer.driver.cards} cards answer"
    return make_check("nvml", Access.ALLOWED, f"{words}: {cards}")


def _judge_failure(failure: FailureLine, kernel_driver: bool, caller: Caller) -> Check:
    if failure.code == _NO_LIBRARY and kernel_driver:
        why = "the kernel has an NVIDIA driver, but libnvidia-ml.so.1 is not here"
        if caller.runtime not in (RuntimeKind.HOST, RuntimeKind.WSL):
            fix = EXPOSE_CARDS if caller.runtime is RuntimeKind.ENGINE else ""
            return make_check("nvml", Access.DENIED, f"{why} (a container without GPUs?)", fix)
        why += ": the driver's library package is missing (such as libnvidia-compute, nvidia-driver-libs)"
        return make_check("nvml", Access.DENIED, why, "ldconfig -p | grep libnvidia-ml")
    if failure.code in (_NO_LIBRARY, _NOT_LOADED) and not kernel_driver:
        return make_check("nvml", Access.ABSENT, "no NVIDIA driver on this machine")
    if failure.code == _MISMATCH:
        why = f"NVML: {failure.reason}: the driver was updated under the running kernel module"
        return make_check("nvml", Access.DENIED, why, administer(caller, "reboot"))
    if failure.code == NO_PERMISSION:
        return make_check("nvml", Access.DENIED, "NVML: no permission for /dev/nvidiactl", _as_root(caller))
    fix = "" if failure.code else install_command("nvidia-ml-py")
    return make_check("nvml", Access.DENIED, f"NVML: {failure.reason}", fix)


def _as_root(caller: Caller) -> str:
    return f"sudo {caller.program} attach {ANY_JOB}" if caller.uid else ""


def _name_refused(cards: Sequence[CardLine]) -> str:
    """Name what a card refuses for lack of permission; "" for nothing."""
    reason = describe_code(NO_PERMISSION)
    for card in cards:
        readings = {
            "utilisation": card.fast.busy,
            "SM activity (GPM)": card.fast.gpm,
            "the process list": card.fast.processes,
            "memory": card.fast.memory_used_bytes,
        }
        names = [name for name, value in readings.items() if value == Missing(reason)]
        if names:
            return f"{', '.join(names)} of card {card.index}"
    return ""


def list_minors(answer: NvmlAnswer) -> Known[frozenset[int]]:
    """Return the N of every /dev/nvidiaN that NVML shows."""
    if not is_known(answer.driver):
        return Missing("NVML does not answer")
    found = [card.identity.minor for card in answer.cards if is_known(card.identity)]
    return frozenset(minor for minor in found if is_known(minor))


def parse_admin_only(parameters: str) -> Known[bool]:
    """Tell from /proc/driver/nvidia/params whether profiling counters are for administrators only."""
    for line in parameters.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "RmProfilingAdminOnly":
            return value.strip() == "1"
    return Missing("the driver does not say")


def judge_counters(admin_only: Known[bool], privileged: bool) -> Check:
    """Judge whether profilers may read hardware counters, as nsys and ncu need; tpmon does not."""
    if isinstance(admin_only, Missing):
        return make_check("counters", Access.ABSENT, f"hardware counters for profilers: {admin_only.reason}")
    if not admin_only or privileged:
        return make_check("counters", Access.ALLOWED, "profilers may read hardware counters")
    why = "only administrators may read hardware counters (ncu and nsys: ERR_NVGPUCTRPERM)"
    return make_check("counters", Access.DENIED, f"{why}; tpmon does without", _OPEN_COUNTERS)


def check_counters(own: Own, proc: str = PROC) -> Check:
    """Read and judge what the driver says of hardware counters."""
    path, unseen = f"{proc}/{_PARAMETERS}", Missing("no NVIDIA driver shows its settings here")
    said = read_or(unseen, lambda: parse_admin_only(read_file(path).decode(errors="replace")))
    return judge_counters(said, own.caller.uid == 0 or parse_capability(own.status, CAP_SYS_ADMIN))


def check_nvml(answer: NvmlAnswer, proc: str = PROC, whom: str = ANY_JOB) -> Check:
    """Judge NVML's answer beside what the kernel has loaded."""
    caller = read_caller(proc)
    expose = find_cards(caller, os.environ.get("SLURM_JOB_ID", ""), whom)
    return judge_nvml(answer, kernel_has_driver(proc), caller, expose)
