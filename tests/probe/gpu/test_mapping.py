"""Which cards a job uses: process lists first, open device files as an upper bound."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tpmon.model.gpu import GpuProcess, GpuSample, GpuState
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.probe.base.procread import in_first_pid_namespace
from tpmon.probe.gpu import mapping as gpu_mapping
from tpmon.probe.gpu.bounds import DriverCard, read_driver_cards
from tpmon.probe.gpu.mapping import (
    ON_DXG,
    OWN_NAMESPACE,
    Card,
    DeviceFiles,
    held_minors,
    kernel_has_driver,
    map_to_job,
    open_device_indices,
    place_silent,
    read_has_driver,
    unlisted_minors,
)
from tpmon.probe.gpu.rates import make_silent_sample

JOB = {10: 1, 11: 1}


def make_card(index: int, pids: Known[tuple[int, ...]], minor: Known[int]) -> Card:
    processes: object = pids
    if is_known(pids):
        processes = tuple(GpuProcess(pid, 5, 1.0, False) for pid in pids)
    sample = make_silent_sample(index, f"GPU-{index}", 0.0, "not in this test")
    listed = replace(sample, state=GpuState.OK, processes=processes, pids=() if is_known(pids) else pids)
    return Card(listed, minor)


def pids_of(cards: tuple[GpuSample, ...]) -> list[object]:
    return [card.pids for card in cards]


NO_MINOR = Missing("not supported by this card")
REFUSED = Missing("permission denied")
NOT_READ = Missing("open files not read yet")
LEFT = Missing("no such file or directory")
OTHERS = (make_card(0, (7000,), 0), make_card(1, (), 1))
MINE = (make_card(0, (10,), 0),)
NUMBERLESS = (make_card(0, (7000,), NO_MINOR),)
LISTED = (make_card(0, (10, 99), 0), make_card(1, (11,), 1), make_card(2, (), 2))
HALF = (make_card(0, (7000,), 4), make_card(1, REFUSED, 5), make_card(2, (), 6))
MAPPED = {
    # CUDA opens every visible card; the lists win.
    "the list is the truth": (LISTED, {10: (0, 1, 2), 11: (0, 1, 2)}, True, [(10,), (11,), ()]),
    "a bare number, nothing scanned": (MINE, {}, False, [NOT_READ]),
    "a bare number of a process born since the scan": (MINE, {11: ()}, False, [()]),
    "a bare number of one that holds no card": (MINE, {10: ()}, False, [()]),
    "a bare number of one that holds a card": (MINE, {10: (0,)}, False, [(10,)]),
    "open files where no list names the job": (HALF, {10: (4, 5), 11: (5,)}, True, [(10,), (10, 11), ()]),
    "a list that cannot be read": ((*MINE, make_card(1, REFUSED, 1)), {10: (0, 1)}, True, [(10,), REFUSED]),
    "no number in a container": (NUMBERLESS, {10: (), 11: ()}, False, [NO_MINOR]),
    # On the machine itself the list names every process of every user.
    "no number on the machine": (NUMBERLESS, {10: (), 11: ()}, True, [()]),
    "no number under WSL": (NUMBERLESS, {10: ON_DXG, 11: ()}, True, [NO_MINOR]),
    "unread files in a container": (OTHERS, {10: REFUSED, 11: ()}, False, [REFUSED, REFUSED]),
    "unread files on the machine": (OTHERS, {10: REFUSED, 11: ()}, True, [(), ()]),
    "unread files under WSL": (OTHERS, {10: ON_DXG}, True, [ON_DXG, ON_DXG]),
    "one unread and one that holds a card": (OTHERS, {10: REFUSED, 11: (1,)}, False, [REFUSED, (11,)]),
    "files of one that ended": (OTHERS, {10: LEFT, 11: ()}, False, [(), ()]),
    "a process that left the job": (MINE, {12: (0,)}, True, [(10,)]),
}


@pytest.mark.parametrize(("cards", "held", "ours", "pids"), MAPPED.values(), ids=MAPPED)
def test_which_cards_the_job_is_on(cards, held, ours, pids):
    found = map_to_job(cards, JOB, held, pids_are_ours=ours)
    assert pids_of(found) == pids
    by_files = pids in ([(10,), (10, 11), ()], [REFUSED, (11,)])
    bounds = [by_files and is_known(one) and bool(one) for one in pids]
    assert [card.pids_are_visible_only for card in found] == bounds, "open files are an upper bound"
    assert {card.lists_only for card in found} == {NOT_APPLICABLE if ours else OWN_NAMESPACE}


def test_the_processes_of_the_job_are_marked_and_those_that_left_it_not():
    (found,) = map_to_job(LISTED[:1], JOB, {}, pids_are_ours=True)
    assert [(one.pid, one.of_job) for one in found.processes] == [(10, True), (99, False)]
    assert pids_of(map_to_job(MINE, {12: 1}, {10: (0,)}, pids_are_ours=True)) == [()]


def test_whether_a_card_could_be_used_at_all(tmp_path):
    no_dxg, devices = str(tmp_path / "dxg"), tmp_path / "devices"
    assert read_has_driver(str(tmp_path), no_dxg) == Missing("no such file or directory")
    assert not kernel_has_driver(str(tmp_path))
    devices.write_text("Character devices:\n  1 mem\n1950 other\n\nBlock devices:\n259 nvme\n")
    assert read_has_driver(str(tmp_path), no_dxg) is kernel_has_driver(str(tmp_path)) is False
    for line in ("195 nvidia-frontend", "508 nvidia-uvm", "506 nvhost-gpu"):
        devices.write_text(f"Character devices:\n  1 mem\n{line}\n")
        assert read_has_driver(str(tmp_path), no_dxg) is True
        assert kernel_has_driver(str(tmp_path)) is line.startswith("195 ")
    devices.write_text("  1 mem\n")
    (tmp_path / "dxg").write_text("")
    assert read_has_driver(str(tmp_path), no_dxg) is True
    make_process(tmp_path, 5, ["/dev/null", "/dev/dxg"])
    files = DeviceFiles(str(tmp_path), no_dxg)
    files.watch({5: 1})
    assert not is_known(files.has_driver)
    assert files.scan() == {5: ON_DXG}
    assert files.has_driver is True


def test_cards_that_the_job_holds_and_nvml_does_not_list():
    cards = (make_card(0, (), 0), make_card(1, (), 1))
    assert unlisted_minors(cards, held_minors(JOB, {10: (0, 5), 11: (4,), 77: (6,)})) == (4, 5)
    assert unlisted_minors(cards, held_minors(JOB, {10: Missing("permission denied")})) == ()
    unknown = (*cards, make_card(2, (), Missing("no permission")))
    assert unlisted_minors(unknown, held_minors(JOB, {10: (5,)})) == ()


def make_process(proc: Path, pid: int, links: Sequence[str], first: int = 0) -> None:
    directory = proc / str(pid) / "fd"
    directory.mkdir(parents=True, exist_ok=True)
    for number, target in enumerate(links, first):
        os.symlink(target, directory / str(number))


def watch_files(proc: Path, held: Mapping[int, Sequence[str]], driver: str = "195 nvidia\n") -> DeviceFiles:
    """Watch processes that hold these files open, where the kernel has the driver."""
    (proc / "devices").write_text(driver)
    for pid, links in held.items():
        make_process(proc, pid, links)
    files = DeviceFiles(str(proc))
    files.watch(dict.fromkeys(held, 1))
    return files


def test_open_device_indices_reads_links(tmp_path):
    make_process(
        tmp_path, 5, ["/dev/nvidia10", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia2", "pipe:[1]"]
    )
    assert open_device_indices(5, str(tmp_path)) == (2, 10)
    assert open_device_indices(os.getpid()) == ()
    assert open_device_indices(2**22 + 1) == Missing("no such file or directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every process")
def test_open_device_indices_of_another_user_is_missing():
    assert open_device_indices(1) == Missing("not permitted (doctor: fd)")


def test_first_pid_namespace(tmp_path):
    (tmp_path / "self" / "ns").mkdir(parents=True)
    os.symlink("pid:[4026531836]", tmp_path / "self" / "ns" / "pid")
    assert in_first_pid_namespace(str(tmp_path))
    assert not in_first_pid_namespace(str(tmp_path / "nothing"))


def test_scans_are_skipped_where_the_kernel_has_no_driver(tmp_path):
    assert watch_files(tmp_path, {5: ["/dev/nvidia0"]}, driver="").scan() == {}


def test_scans_are_rationed_and_forget_what_left(tmp_path, monkeypatch):
    scanned: list[int] = []

    def count(pid, proc):
        scanned.append(pid)
        return open_device_indices(pid, proc)

    monkeypatch.setattr(gpu_mapping, "open_device_indices", count)
    files = watch_files(tmp_path, dict.fromkeys(range(100), ("/dev/nvidia0",)))
    assert len(files.scan()) == 64
    assert len(files.scan()) == 100
    assert len(scanned) == 100
    assert len(files.scan()) == 100
    assert len(scanned) == 100
    # The same PID with another start time is another process.
    files.watch({5: 2})
    assert files.scan() == {5: (0,)}
    assert len(scanned) == 101


def test_old_scans_are_repeated_a_few_at_a_time(tmp_path, monkeypatch):
    files = watch_files(tmp_path, dict.fromkeys(range(20), ()))
    files.scan()
    monkeypatch.setattr(gpu_mapping, "RESCAN_S", 0.0)
    monkeypatch.setattr(gpu_mapping, "EMPTY_RESCAN_S", 0.0)
    for pid in range(20):
        make_process(tmp_path, pid, ["/dev/nvidia3"], 9)
    found = [sum(minors == (3,) for minors in files.scan().values()) for _ in range(3)]
    assert found == [8, 16, 20]


def test_a_process_that_holds_no_card_yet_is_looked_at_again_soon(tmp_path, monkeypatch):
    files = watch_files(tmp_path, {1: (), 2: ["/dev/nvidia0"]})
    assert files.scan() == {1: (), 2: (0,)}
    for pid in (1, 2):
        make_process(tmp_path, pid, ["/dev/nvidia3"], 9)
    assert files.scan() == {1: (), 2: (0,)}
    monkeypatch.setattr(gpu_mapping, "EMPTY_RESCAN_S", 0.0)
    assert files.scan() == {1: (3,), 2: (0,)}


UNKNOWN = Missing("the card has not answered yet")
OPEN = Missing("which /dev/nvidiaN it is is not known")
UNREAD_DRIVER = Missing("the driver's files were not read")
TWO = (DriverCard(0, "GPU-a", "H100"), DriverCard(1, "GPU-b", "H100"))


SILENT = {
    "the one that is held and none of the others": (UNREAD_DRIVER, (1,), {10: (0, 1), 11: (1,)}, [(10, 11)]),
    "none is held": (UNREAD_DRIVER, (1,), {10: (0,), 11: ()}, [()]),
    "a process was not read": (UNREAD_DRIVER, (1,), {10: (0,), 11: REFUSED}, [OPEN]),
    "two are held and one is silent": (UNREAD_DRIVER, (1,), {10: (0, 1, 2), 11: ()}, [OPEN]),
    "one is held and two are silent": (UNREAD_DRIVER, (1, 2), {10: (0, 1), 11: ()}, [OPEN, OPEN]),
    "two and two": (UNREAD_DRIVER, (1, 2), {10: (0, 1), 11: (2,)}, [(10,), (11,)]),
    "named by the driver": (TWO, (1,), {10: (0, 1, 2), 11: ()}, [(10,)]),
    "named and not held": (TWO, (1,), {10: (0,), 11: ()}, [()]),
    "named and not read": (TWO, (1,), {10: (0,), 11: REFUSED}, [UNKNOWN]),
}


@pytest.mark.parametrize(("driver", "silent", "held", "pids"), SILENT.values(), ids=SILENT)
def test_a_card_that_never_answered_is_the_one_that_is_left(driver, silent, held, pids):
    samples = [make_silent_sample(index, f"card-{index}", 9.0, UNKNOWN.reason) for index in silent]
    cards = (make_card(0, (10,), 0), *(Card(sample, UNKNOWN) for sample in samples))
    found = map_to_job(place_silent(cards, driver, JOB, held), JOB, held, pids_are_ours=True)
    assert pids_of(found[1:]) == pids
    assert pids_of(found[:1]) == [(10,)]
    assert all(card.pids_are_visible_only for card in found[1:] if is_known(card.pids) and card.pids)
    if driver is TWO:
        named = place_silent(cards, driver, JOB, held)[1]
        assert (named.sample.name, named.sample.uuid, named.minor) == ("H100", "GPU-b", 1)


INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 130
GPU UUID: \t {uuid}
Bus Type: \t PCIe
Bus Location: \t 0000:{bus}:00.0
Device Minor: \t {minor}
GPU Excluded:\t {excluded}
"""


def test_the_kernels_driver_names_its_cards_without_nvml(tmp_path):
    with pytest.raises(OSError, match="gpus"):
        read_driver_cards(str(tmp_path))
    cards = (("4b", "GPU-b", "1", "No"), ("19", "GPU-a", "0", "No"), ("5d", "GPU-c", "2", "Yes"))
    for bus, uuid, minor, excluded in (*cards, ("9a", "GPU-????????-????", "3", "No"), ("ba", "GPU-d", "?", "No")):
        folder = tmp_path / "driver/nvidia/gpus" / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        text = INFORMATION.format(bus=bus, uuid=uuid, minor=minor, excluded=excluded)
        (folder / "information").write_text(text)
    name = "NVIDIA H100 80GB HBM3"
    assert read_driver_cards(str(tmp_path)) == (
        DriverCard(0, "GPU-a", name),
        DriverCard(1, "GPU-b", name),
        DriverCard(3, "", name),
    )
