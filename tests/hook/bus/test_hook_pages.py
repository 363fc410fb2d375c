"""The pages of the hook: sealed, private to their process, gone without a trace."""

import errno
import mmap
import os

import pytest

from tests.hooks import find_page, list_pages, open_page
from tpmon.hook.bus import pages as pages_module
from tpmon.hook.bus import wire
from tpmon.hook.bus.pages import Pages


@pytest.fixture
def pages():
    pages = Pages("0.1", "2.0", (1, 4, 1))
    yield pages
    pages.close()


def test_the_header_says_whose_page_it_is(pages):
    with open_page(find_page(os.getpid())) as page:
        header = wire.parse_header(page)
        assert wire.parse_status(page)[0] == wire.STATE_RUNNING
    with open("/proc/self/stat") as file:
        start = int(file.read().rpartition(")")[2].split()[19])
    assert (header.pid, header.start_ticks) == (os.getpid(), start)
    assert (header.rank, header.world_size, header.local_rank) == (1, 4, 1)
    with open_page(find_page(os.getpid(), wire.MAILBOX_NAME)) as page:
        assert wire.parse_mailbox(page) == os.getpid()


@pytest.mark.parametrize("name", [wire.TELEMETRY_NAME, wire.MAILBOX_NAME])
@pytest.mark.parametrize("size", [0, 100, 2**20])
def test_a_reader_cannot_change_the_size_of_a_page(pages, name, size):
    with open(find_page(os.getpid(), name), "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.truncate(size)


def test_nobody_else_can_write_the_telemetry_page_and_the_mailbox_can_be_written_from_outside(pages):
    with open(find_page(os.getpid()), "r+b", buffering=0) as file:
        with pytest.raises(PermissionError):
            mmap.mmap(file.fileno(), 4096)
        with pytest.raises(PermissionError):
            file.write(b"x")
    pages.live[1] = 77
    with open_page(find_page(os.getpid())) as page:
        assert wire.parse_live(page)[1] == 77
    with open(find_page(os.getpid(), wire.MAILBOX_NAME), "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), (9).to_bytes(8, "little"), wire.REQUEST_OFFSET)
    assert pages.requests[0] == 9


def test_a_child_that_drops_its_copies_leaves_its_parents_pages_alone(pages):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            pages.close()
            code = len(list_pages(os.getpid())) + len(list_pages(os.getpid(), wire.MAILBOX_NAME))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pages.live[0] = 5
    with open_page(find_page(os.getpid())) as page:
        assert wire.parse_live(page)[0] == 5


def test_nothing_is_left_after_closing_and_no_program_inherits_the_pages():
    before = len(os.listdir("/proc/self/fd"))
    pages = Pages("", "", (-1, -1, -1))
    held = len(os.listdir("/proc/self/fd")) - before
    assert held <= 4
    assert not any(os.get_inheritable(int(path.rsplit("/", 1)[1])) for path in list_pages(os.getpid()))
    pages.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list_pages(os.getpid()) == []


def test_descriptors_that_somebody_closed_and_reused_are_not_closed_again():
    pages = Pages("", "", (-1, -1, -1))
    ours = sorted(int(path.rsplit("/", 1)[1]) for path in list_pages(os.getpid()))
    other = os.open("/dev/null", os.O_RDONLY)
    os.dup2(other, ours[-1])
    pages.close()
    assert os.fstat(ours[-1]).st_rdev == os.fstat(other).st_rdev
    os.close(other)
    os.close(ours[-1])


def test_where_python_has_no_memfd_create_the_kernel_is_called(monkeypatch):
    if os.uname().machine not in pages_module._MEMFD_CREATE:
        pytest.skip("another machine")
    monkeypatch.delattr(os, "memfd_create")
    pages = Pages("", "", (-1, -1, -1))
    assert list_pages(os.getpid())
    pages.close()
    monkeypatch.setattr(pages_module, "_MEMFD_CREATE", {})
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        Pages("", "", (-1, -1, -1))
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_old_kernel_seals_the_sizes_at_least(monkeypatch):
    monkeypatch.setattr(pages_module, "_SEAL_FUTURE_WRITE", 0x1000)
    pages = Pages("", "", (-1, -1, -1))
    with open_page(find_page(os.getpid())) as page:
        assert wire.parse_header(page).flags == wire.FLAG_CAPTURES
    with open(find_page(os.getpid()), "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.truncate(0)
    pages.close()


def test_no_file_of_the_program_is_asked_for_anything_when_a_child_begins(monkeypatch, tmp_path):
    """One of them may lie on a server that does not answer."""
    asked = []
    monkeypatch.setattr(pages_module.os, "fstat", lambda fd: asked.append(fd) or os.stat(f"/proc/self/fd/{fd}"))
    with open(tmp_path / "shard", "w") as file:
        pages_module._are_twice([(0, 0)])
        assert file.fileno() not in asked


class AlarmError(Exception):
    pass


@pytest.mark.parametrize("at", [1, 2])
def test_an_alarm_right_after_a_close_is_what_is_raised(monkeypatch, at):
    """At the first or second descriptor that was moved; EBADF in its place would turn the hook off for good."""
    before = set(os.listdir("/proc/self/fd"))
    closed: list[int] = []
    real = os.close

    def close(descriptor):
        real(descriptor)
        closed.append(descriptor)
        if len(closed) == at:
            raise AlarmError

    with monkeypatch.context() as patched:
        patched.setattr(pages_module.os, "close", close)
        with pytest.raises(AlarmError):
            Pages("1", "2.13", (0, 1, 0))
    assert set(os.listdir("/proc/self/fd")) == before
