"""Name the library of a busy thread pool from what is mapped, where its threads stand and where they began."""

import os
import platform
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import child
from tests.frames import make_process
from tpmon.model.host import PoolLibrary
from tpmon.model.known import Missing, is_known
from tpmon.probe.collect.pools import (
    Mapping,
    PoolLibraries,
    choose_library,
    find_mapping,
    find_thread,
    name_library,
    name_start,
    parse_maps,
    parse_stacks,
    read_far_ends,
    read_pool_library,
)

MAPS = b"""00400000-00401000 r--p 00000000 fe:01 100                            /usr/bin/python3.11
00401000-006a0000 r-xp 00001000 fe:01 100                            /usr/bin/python3.11
01e5c000-02f00000 rw-p 00000000 00:00 0                              [heap]
7f0000000000-7f0000100000 r--p 00000000 fe:01 200                    /v/site-packages/torch/lib/libgomp.so.1
7f0000100000-7f0000200000 r-xp 00100000 fe:01 200                    /v/site-packages/torch/lib/libgomp.so.1
7f0000300000-7f0000400000 r-xp 00000000 fe:01 201                    /v/a b/numpy.libs/libscipy_openblas64_-99b71e71.so
7f0000500000-7f0000600000 r-xp 00000000 00:00 0
7f0000700000-7f0000800000 r-xp 00000000 fe:01 203                    /usr/lib/libc.so.6
7f0000900000-7f0000a00000 r-xp 00000000 00:05 204                    /memfd:jit (deleted)
7ffd7f1e2000-7ffd7f1e4000 r-xp 00000000 00:00 0                      [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0              [vsyscall]
"""
GOMP, BLAS, LIBC = 0x7F0000150000, 0x7F0000350000, 0x7F0000750000


def test_executable_files_alone_are_kept_in_order_of_address():
    mappings = parse_maps(MAPS)
    assert [mapping.path.rsplit("/", 1)[1] for mapping in mappings] == [
        "python3.11",
        "libgomp.so.1",
        "libscipy_openblas64_-99b71e71.so",
        "libc.so.6",
        "memfd:jit (deleted)",
    ]
    assert mappings[1] == Mapping(0x7F0000100000, 0x7F0000200000, "/v/site-packages/torch/lib/libgomp.so.1")
    assert mappings[2].path.startswith("/v/a b/")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (GOMP, "libgomp.so.1"),
        (0x7F0000100000, "libgomp.so.1"),
        (0x7F00001FFFFF, "libgomp.so.1"),
        (0x7F0000200000, ""),
        (0x7F0000550000, ""),
        (0x0, ""),
        (1 << 63, ""),
    ],
)
def test_an_address_belongs_to_the_mapping_around_it(address, name):
    assert find_mapping(parse_maps(MAPS), address).rpartition("/")[2] == name
    assert find_mapping((), address) == ""


TORCH = Mapping(0x1000, 0x2000, "/v/torch/lib/libtorch_cpu.so")

PATHS = {
    "/v/torch/lib/libgomp-24e2ab19.so.1.0.0": "libgomp",
    "/usr/lib/x86_64-linux-gnu/libgomp.so.1": "libgomp",
    "/v/lib/libiomp5.so": "libiomp5",
    "/usr/lib/llvm/libomp.so.5": "libiomp5",
    "/v/lib/libmkl_intel_thread.so.2": "mkl",
    "/v/lib/libmkl_gnu_thread.so.2": "mkl",
    "/v/lib/libmkl_core.so.2": "",
    "/v/numpy.libs/libopenblas64_p-r0-0cf96a72.3.23.dev.so": "openblas",
    "/v/numpy.libs/libscipy_openblas64_-99b71e71.so": "openblas",
    "/v/cv2/cv2.abi3.so": "opencv",
    "/v/numexpr/interpreter.cpython-311-x86_64-linux-gnu.so": "numexpr",
    "/v/lib/libtbb.so.12": "tbb",
    "/usr/lib/libc.so.6": "",
    "/home/libgomp/train.py": "",
}


@pytest.mark.parametrize("path", PATHS)
def test_libraries_by_their_usual_file_names(path):
    assert name_library(path) == (PATHS[path] or None)


def test_where_blocked_threads_stand_decides_between_mapped_libraries():
    mappings = parse_maps(MAPS)
    both = ("libgomp", "openblas")
    assert choose_library(mappings, ()) == both
    assert choose_library(mappings, ["/usr/lib/libc.so.6", ""]) == both
    assert choose_library(mappings, ["/usr/lib/libc.so.6", mappings[2].path]) == ("openblas",)
    assert choose_library(mappings[:1], ()) == Missing("no known pool library is mapped")
    words = ("OpenMP (libgomp: torch)", "OpenMP (libiomp5: torch, MKL)", "MKL", "OpenBLAS (numpy)", "OpenCV (cv2)")
    assert PoolLibrary.name_all([*PoolLibrary]).split(" or ") == [*words, "numexpr", "TBB", "torch"]


def test_blocked_threads_of_a_captured_pool(tmp_path):
    task = tmp_path / "77" / "task"
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "maps").write_bytes(MAPS)
    for tid, pc in ((78, LIBC), (79, GOMP)):
        (task / str(tid)).mkdir(parents=True)
        (task / str(tid) / "syscall").write_text(f"202 0x1 0x80 0x0 0x0 0x0 0x0 0x7ffd7f1c4a50 {pc:#x}\n")
    (task / "80").mkdir()
    (task / "80" / "syscall").write_text("running\n")
    proc = str(tmp_path)
    assert read_pool_library(77, (80, 78, 79, 81), proc) == ("libgomp",)
    assert read_pool_library(77, (80, 78), proc) == ("libgomp", "openblas")
    assert read_pool_library(99, (), proc) == Missing("No such file or directory")


def test_a_real_process_maps_no_pool_library_until_it_loads_one():
    pytest.importorskip("numpy")
    with child("say('up'); hear(); import numpy; say('loaded'); hear()") as one:
        assert read_pool_library(one.pid, (one.pid,)) == Missing("no known pool library is mapped")
        one.say("go")
        one.hear()
        assert read_pool_library(one.pid, (one.pid,)) == ("openblas",)
    assert read_pool_library(one.pid, ()) == Missing("No such file or directory")


TWO_LIBRARIES = """
os.environ["OPENBLAS_NUM_THREADS"] = "3"
import glob, importlib.util
import numpy
held = ctypes.CDLL(glob.glob(importlib.util.find_spec("torch").submodule_search_locations[0] + "/lib/libgomp*")[0])
start_burning(1)
numpy.ones((500, 500)) @ numpy.ones((500, 500))
say("up")
hear()
"""


@pytest.mark.torch
def test_where_threads_began_decides_between_two_libraries_that_are_mapped():
    pytest.importorskip("numpy")
    with child(TWO_LIBRARIES) as one:
        tids = [int(name) for name in os.listdir(f"/proc/{one.pid}/task")]
        if platform.machine() != "x86_64":
            pytest.skip("thread blocks of glibc are known on x86-64 alone")
        assert read_pool_library(one.pid, tids) == ("openblas",)
        mapped = read_pool_library(one.pid, [one.pid], memory=False)
        assert set(mapped) == {"openblas", "libgomp"}
        assert read_pool_library(one.pid, [one.pid]) == mapped, "the main thread begins in no library"


def test_the_first_frame_of_a_stack_names_its_library_and_a_pointer_among_its_variables_names_none():
    mappings = parse_maps(MAPS)
    assert name_start(mappings, [0, 7, LIBC, BLAS, GOMP]) == "openblas"
    assert name_start(mappings, [LIBC, GOMP, BLAS]) == "libgomp"
    assert name_start(mappings, [LIBC, 0x404000]) is None
    assert name_start([*mappings, TORCH], [LIBC, 0x1800]) == "torch"
    mappings = (*mappings, TORCH)
    assert name_start(mappings, [0x1800, 0, LIBC, GOMP, 0x1800]) == "libgomp"
    assert name_start(mappings, [0x1800, GOMP]) is None, "nothing started it"


def test_a_library_is_named_without_leaving_a_thread_or_file():
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    read_pool_library(os.getpid(), (os.getpid(),))
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_pools_that_take_turns_in_being_the_largest_are_each_named_once(monkeypatch):
    """Reading the maps of a process takes its mmap lock: once a minute, not at every turn."""
    read = []
    monkeypatch.setattr(
        "tpmon.probe.collect.pools.read_pool_library",
        lambda pid, _tids, memory: read.append(pid) or f"library of {pid}",
    )
    second = 1_000_000_000
    libraries = PoolLibraries(lambda _identity: ())
    for tick in range(10):
        pools = [
            make_process(7, runnable=5.0 + tick % 2, busy_threads=4),
            make_process(8, runnable=5.5, busy_threads=4),
        ]
        assert libraries.read(pools, tick * second) == f"library of {7 if tick % 2 else 8}"
    assert read == [8, 7]
    libraries.read(pools, 70 * second)
    assert read == [8, 7, 7]
    assert libraries.read(pools[:1], 71 * second) == "library of 7"
    assert not is_known(libraries.read((), 72 * second))


MB = 1 << 20
STACK_MAPS = b"""00400000-00401000 r--p 00000000 fe:01 100                            /usr/bin/python3.11
01e5c000-02f00000 rw-p 00000000 00:00 0                              [heap]
7f0000000000-7f0000001000 ---p 00000000 00:00 0
7f0000001000-7f0000801000 rw-p 00000000 00:00 0
7f0000801000-7f0000802000 ---p 00000000 00:00 0
7f0000803000-7f0000903000 rw-p 00000000 00:00 0
7f0000a00000-7f0000a08000 rw-p 00000000 00:00 0
7f0001000000-7f0003000000 rw-p 00000000 00:00 0
7f0004000000-7f0004100000 rw-p 00000000 fe:01 200                    /data/table.bin
garbage
"""


def make_block(base: int, at: int, tid: int, size: int = 8192) -> bytearray:
    """Return ``size`` bytes at ``base`` with glibc's block of a thread at ``at`` in them."""
    block = bytearray(size)
    struct.pack_into("=Q", block, at, base + at)
    struct.pack_into("=Q", block, at + 16, base + at)
    struct.pack_into("=i", block, at + 720, tid)
    return block


def test_stacks_are_anonymous_and_lie_behind_a_guard_or_are_large():
    assert parse_stacks(STACK_MAPS) == (
        Mapping(0x7F0000001000, 0x7F0000801000),
        Mapping(0x7F0001000000, 0x7F0003000000),
    )


@given(st.integers(0, 900), st.integers(1, 1 << 30))
def test_a_thread_is_found_by_its_block(place, tid):
    base = 0x7F0000001000
    assert find_thread(bytes(make_block(base, 8 * place, tid)), base) == (base + 8 * place, tid)


@given(st.binary(max_size=4096), st.integers(0, (1 << 47) // 8))
def test_any_bytes_raise_nothing(block, base):
    find_thread(block, 8 * base)


def test_a_block_that_is_cut_off_is_none():
    base = 0x7F0000001000
    block = bytes(make_block(base, 7400, 5))
    assert find_thread(block, base) == (base + 7400, 5)
    assert find_thread(block[:8100], base) is None
    assert find_thread(block, base + 8) is None


def test_far_ends_of_stacks_that_are_one_mapping(tmp_path):
    """A guard that is no mapping of its own lets neighbouring stacks be one: each is looked for at its own end."""
    process = tmp_path / "77"
    size = 8 * MB
    for tid, inner in ((78, 3), (79, 4)):
        task = process / "task" / str(tid)
        task.mkdir(parents=True)
        (task / "status").write_text(f"Name:\tpython\nNSpid:\t{tid}\t{inner}\n")
    with (process / "mem").open("wb") as memory:
        for number, inner in enumerate((3, 9, 4)):
            end = (number + 1) * size
            block = make_block(end - 8192, 4096, inner)
            memory.seek(end - 8192)
            memory.write(block)
            memory.seek(end - 8192 + 4096 - 24)
            memory.write(struct.pack("=3Q", 0xB0 + inner, 0xA0 + inner, 0))
    found = read_far_ends(77, (78, 79), (Mapping(0, 3 * size),), str(tmp_path))
    assert sorted(words[:3] for words in found) == [(0, 0xA3, 0xB3), (0, 0xA4, 0xB4)]
    assert read_far_ends(77, (80,), (Mapping(0, 3 * size),), str(tmp_path)) == ()
