"""Ration PSS, in turn and never of large processes; fit growth that one outlier does not move."""

import os
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.children import child
from tests.frames import make_process
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Identity
from tpmon.probe.base.procread import PAGE_BYTES, read_stat
from tpmon.probe.base.worker import Pace
from tpmon.probe.proc import memory

SECOND = 1_000_000_000
MIB = 1 << 20
RATIONED = Missing("rationed: one process every 10 s")
HIDDEN = Missing("no control group of its own")
UNFITTED = Missing(f"growth needs {memory.SLOPE_MIN_POINTS} readings")

ROLLUP = b"""55d0c1a00000-7ffd7f1e4000 ---p 00000000 00:00 0                          [rollup]
Rss:              884 kB
Pss:              385 kB
Pss_Dirty:         68 kB
Pss_Anon:         301 kB
"""


def test_pss_is_its_own_line_and_anonymous_memory_what_is_resident_less_files_and_shared_pages():
    assert memory.parse_pss(ROLLUP) == 385 * 1024
    assert memory.parse_anon(b"900 500 180 1 0 300 0\n") == 320 * PAGE_BYTES


@pytest.mark.parametrize(
    ("parse", "raw"), [(memory.parse_pss, b"Pss_Dirty: 68 kB\n"), (memory.parse_pss, b""), (memory.parse_anon, b"9 5")]
)
def test_a_file_that_is_cut_is_refused(parse, raw):
    with pytest.raises(ValueError):
        parse(raw)


def test_anonymous_memory_is_added_over_processes_and_read_again_where_it_changed(tmp_path):
    def put(pid, resident, shared):
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "statm").write_text(f"9999 {resident} {shared} 1 0 300 0\n")

    reader = memory.AnonReader(str(tmp_path))
    rows = [make_process(7, rss_bytes=500), make_process(8, rss_bytes=90)]
    put(7, 500, 400)
    put(8, 90, 40)
    assert reader.read(SECOND, HIDDEN, rows) == memory.AnonMemory(150 * PAGE_BYTES, UNFITTED, True)
    put(7, 900, 800)
    put(8, 95, 0)
    assert reader.read(SECOND, HIDDEN, [rows[0], make_process(8, rss_bytes=95)]).anon_bytes == 195 * PAGE_BYTES
    gone = make_process(9)
    assert reader.read(SECOND, HIDDEN, [rows[0], gone]).anon_bytes == 100 * PAGE_BYTES, "it ended meanwhile"
    assert isinstance(reader.read(SECOND, HIDDEN, [gone]).anon_bytes, Missing)
    (tmp_path / "8" / "statm").write_text("")
    assert isinstance(reader.read(SECOND, HIDDEN, [make_process(8, rss_bytes=1)]).anon_bytes, Missing)
    assert reader.read(SECOND, 77, rows) == memory.AnonMemory(77, UNFITTED, False)


MAPS_A_FILE = """
import mmap, tempfile
file = tempfile.TemporaryFile(dir=sys.argv[1])
file.truncate(64 << 20)
held = mmap.mmap(file.fileno(), 64 << 20, prot=mmap.PROT_READ)
say("mapped")
hear()
sum(held[at] for at in range(0, 64 << 20, 4096))
say("touched")
hear()
held = bytearray(32 << 20)
say("allocated")
hear()
"""


def test_a_mapped_file_that_is_touched_is_no_anonymous_memory(tmp_path):
    with child(MAPS_A_FILE, str(tmp_path)) as real:

        def measure():
            rss = read_stat(real.pid).rss_bytes
            return rss, memory.AnonReader().read(SECOND, HIDDEN, [make_process(real.pid, rss_bytes=rss)]).anon_bytes

        before = measure()
        assert real.ask("go") == "touched"
        touched = measure()
        assert touched[0] - before[0] > 48 * MIB
        assert abs(touched[1] - before[1]) < 8 * MIB
        assert real.ask("go") == "allocated"
        assert measure()[1] - touched[1] > 24 * MIB


class Written(memory.PssRation):
    """Read smaps_rollup files that a test writes; each holds its PID in KiB."""

    def __init__(self, root) -> None:
        super().__init__(str(root))
        self.root = root

    def put(self, *pids, start_ticks=5):
        for pid in pids:
            folder = self.root / str(pid)
            folder.mkdir(exist_ok=True)
            fields = ["S", *["0"] * 18, str(start_ticks), *["0"] * 30]
            (folder / "stat").write_text(f"{pid} (python) {' '.join(fields)}\n")
            (folder / "smaps_rollup").write_text(f"Rss: 1 kB\nPss: {pid} kB\n")
        return self

    def follow(self, *pids, rss=MIB, pace=Pace.FULL):
        self.watch({who(pid): rss for pid in pids}, pace)

    def read_pids(self, times: int) -> list[int]:
        """Read a few times and say which process each read was of."""
        order = []
        for _ in range(times):
            before = dict(self._known)
            self.read_next()
            order += [one.pid for one in self._rss if self._known.get(one) is not before.get(one)]
        return order


def who(pid: int) -> Identity:
    return Identity(pid, 5)


@pytest.fixture
def ration(tmp_path):
    return Written(tmp_path)


def test_each_process_in_turn_oldest_reading_first_also_beside_one_that_cannot_be_read(ration):
    ration.put(11, 12, 13).follow(11, 12, 13)
    assert ration.latest(who(12)) == RATIONED
    assert ration.read_pids(6) == [11, 12, 13, 11, 12, 13]
    pss = ration.latest(who(12))
    assert pss.pss_bytes == 12 * 1024
    assert abs(time.monotonic_ns() - pss.taken_ns) < 5 * SECOND
    (ration.root / "12" / "smaps_rollup").unlink()
    assert ration.read_pids(6) == [11, 12, 13, 11, 12, 13]
    assert ration.latest(who(12)) == Missing("PSS: no such file or directory")
    ration.put(14).follow(11, 12, 14)
    assert ration.read_pids(1) == [14]
    ration.follow()
    ration.read_next()
    ration.follow(11)
    assert ration.latest(who(11)) == RATIONED, "who left is forgotten"


def test_a_large_process_is_never_read(ration):
    ration.put(11, 12)
    ration.watch({who(11): memory.PSS_MAX_RSS_BYTES + 1, who(12): memory.PSS_MAX_RSS_BYTES})
    assert ration.read_pids(3) == [12, 12, 12]
    assert ration.latest(who(11)) == Missing("larger than 1 GiB: reading PSS would stall the process")
    ration.follow(12, rss=memory.PSS_MAX_RSS_BYTES + 1)
    assert not is_known(ration.latest(who(12))), "grown: the old figure is no longer shown"
    ration.read_next()


def test_every_third_turn_is_used_while_the_verdict_is_settled(ration, monkeypatch):
    ration.put(11).follow(11, pace=Pace.SETTLED)
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: round(now[0] * SECOND))
    taken = set()
    for _ in range(7):
        ration.read_next()
        taken.add(round(ration.latest(who(11)).taken_ns / SECOND))
        now[0] += memory.PSS_EVERY_S
    assert taken == {1000, 1030, 1060}


def test_a_pid_that_another_process_has_by_now_shows_no_figure(ration):
    ration.put(11).follow(11)
    ration.read_next()
    assert is_known(ration.latest(who(11)))
    heir = Identity(11, 99)
    ration.watch({heir: MIB})
    assert ration.latest(heir) == RATIONED
    ration.read_next()
    assert ration.latest(heir) == Missing("PSS: the process is gone"), "its stat line is not the heir's"
    ration.put(11, start_ticks=99).read_next()
    assert ration.latest(heir).pss_bytes == 11 * 1024


def test_pss_of_real_processes_that_share_is_less_than_their_rss():
    with child("a = bytearray(os.urandom(24 << 20))\nif not os.fork(): time.sleep(50)\nsay('up'); hear()") as one:
        with open(f"/proc/{one.pid}/statm") as file:
            rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        ration = memory.PssRation()
        process, absent = Identity(one.pid, read_stat(one.pid).start_ticks), Identity(1 << 22, 5)
        ration.watch({process: rss, absent: MIB})
        ration.read_next()
        ration.read_next()
        pss = ration.latest(process)
        assert 12 * MIB < pss.pss_bytes < rss - 8 * MIB
        assert ration.latest(absent) == Missing("PSS: no such file or directory")


SERIES = st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=30)


def at_seconds(values) -> list[tuple[int, float]]:
    return [(i * SECOND, value) for i, value in enumerate(values)]


@given(st.floats(-1e8, 1e8), st.floats(-1e9, 1e9), st.integers(2, 40))
def test_a_line_has_its_own_slope(slope, start, count):
    points = at_seconds([start + slope * i for i in range(count)])
    assert memory.fit_slope(points) == pytest.approx(slope, rel=1e-6, abs=1e-3)


@given(SERIES, st.floats(0.01, 100), st.floats(-1e9, 1e9), st.integers(0, 10**15))
def test_the_slope_scales_with_the_figure_and_where_and_when_it_starts_does_not_matter(values, factor, shift, later_ns):
    moved = [(ns + later_ns, value * factor + shift) for ns, value in at_seconds(values)]
    assert memory.fit_slope(moved) == pytest.approx(factor * memory.fit_slope(at_seconds(values)), rel=1e-6, abs=1e-3)


@given(st.lists(st.floats(-100, 100), min_size=20, max_size=40), st.integers(0, 39), st.floats(-1e12, 1e12))
def test_one_outlier_leaves_the_slope_between_those_of_the_noise(noise, where, outlier):
    """A checkpoint or a freed cache: least squares would follow it."""
    assume(where < len(noise))
    values = [1e6 * i + wobble for i, wobble in enumerate(noise)]
    values[where] = outlier
    assert memory.fit_slope(at_seconds(values)) == pytest.approx(1e6, abs=200)


@pytest.mark.parametrize("points", [[], [(5, 1.0)], [(5, 1.0), (5, 2.0)]])
def test_a_slope_needs_two_moments(points):
    with pytest.raises(ValueError, match="two moments"):
        memory.fit_slope(points)


def test_growth_waits_for_enough_readings_and_forgets_the_last_minute():
    growth = memory.MemoryGrowth()
    slopes = [growth.add(i * SECOND, 5e6 * i) for i in range(memory.SLOPE_MIN_POINTS + 5)]
    assert not is_known(slopes[memory.SLOPE_MIN_POINTS - 2])
    assert slopes[-1] == pytest.approx(5e6)
    for i in range(70):
        slope = growth.add((20 + i) * SECOND, 70e6)
    assert slope == pytest.approx(0.0)
    assert len(growth._points) <= memory.SLOPE_SPAN_NS // SECOND + 1
