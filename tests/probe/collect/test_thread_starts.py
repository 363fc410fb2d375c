"""Find the stack of a thread by glibc's block at its end, and what its first frames left there."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from tpmon.probe.collect.pools import Mapping, find_thread, parse_stacks, read_far_ends

MB = 1 << 20
MAPS = b"""00400000-00401000 r--p 00000000 fe:01 100                            /usr/bin/python3.11
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
    assert parse_stacks(MAPS) == (Mapping(0x7F0000001000, 0x7F0000801000), Mapping(0x7F0001000000, 0x7F0003000000))


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
