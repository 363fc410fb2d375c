"""Ranks are told apart: by their number, by their file where there is none or two traces of one."""

from tests.traces import TraceBuilder
from tpmon.model.known import Missing
from tpmon.model.results.trace import TraceRankRow
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.view.trace import name_files, name_ranks

UNKNOWN = Missing("not told")


def row(rank, path: str) -> TraceRankRow:
    return TraceRankRow(rank, path, 1.0, 1.0, 0.0, 0.0, 0.0, UNKNOWN, UNKNOWN)


def test_the_file_stands_where_the_rank_is_not_known_or_not_the_only_one():
    rows = [row(0, "/a/x.pt.trace.json.gz"), row(0, "/a/y.json"), row(1, "/a/z.json"), row(UNKNOWN, "/a/cpu.json")]
    assert list(name_ranks(rows).values()) == ["0 x", "0 y", "1", "cpu"]


def test_long_names_that_begin_alike_still_differ():
    paths = [f"/logs/{'a_very_long_name_of_a_run' * 2}_{letter}.pt.trace.json" for letter in "ab"]
    named = list(name_files(paths).values())
    assert all(len(name) <= 20 for name in named)
    assert [name[-2:] for name in named] == ["_a", "_b"]
    assert name_files(["/logs/" + "x" * 30]) == {"/logs/" + "x" * 30: "x" * 19 + "…"}
    assert "\x1b" not in "".join(name_files(["/t/\x1b[2Ja.json"]).values())


def test_the_text_names_the_files_of_traces_without_a_rank(tmp_path):
    paths = [
        TraceBuilder().step(1, 0, 1000).op("aten::mm", 10, 500).write(tmp_path / name)
        for name in ("before_fix.json", "after_fix.json")
    ]
    text = write_report(analyze(paths))
    assert [line.split()[0] for line in text[4:6]] == ["after_fix", "before_fix"]
    assert "?" not in "".join(text[:5])
