"""What ``make size`` counts, on a small project."""

import subprocess
from pathlib import Path

import pytest

from tests.size import main, measure_python

MODULE = '''"""Say what it is.

In two paragraphs.
"""

# a comment
TEXT = """
# no comment

"""  # the end


class Thing:
    LIMIT = 3
    """How many."""

    async def run(self) -> int:
        # why
        return 1  # here
'''


def test_each_line_is_of_one_kind():
    lines, longest, name = measure_python(MODULE)
    assert lines == {"docs": 5, "comment": 2, "code": 8, "blank": 4}
    assert (longest, name) == (3, "run")


@pytest.fixture
def project(tmp_path):
    for path, text in {
        "tpmon/__init__.py": "",
        "tpmon/judge/rules/loader.py": MODULE,
        "tpmon/judge/rules/causes.toml": "one = 1\n\n",
        "tpmon/picture.png": "no text",
        "tests/test_it.py": "def test_it(): ...\n",
        "docs/page.md": "# Page\n\nText.\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    git(tmp_path, "init", "--quiet")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *name, *words], cwd=folder, check=True)


def cells_of(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if line.strip()]


def test_a_package_counts_all_below_it(project, capsys):
    assert main([], project) == 0
    head, tpmon, judge, rules, tests, docs = cells_of(capsys.readouterr().out)
    assert head[:7] == ["files", "lines", "code", "docs", "comment", "blank", "data"]
    whole = ["21", "8", "5", "2", "5", "1", "19", "loader.py", "3", "run", "2", "tpmon/judge/rules"]
    assert tpmon == ["tpmon", "3", *whole]
    assert judge == ["judge", "2", *whole]
    assert rules == ["rules", "2", *whole]
    assert tests == ["tests", "1", "1", "1", "-", "-", "-", "-", "1", "test_it.py", "1", "test_it", "1", "tests"]
    assert docs == ["docs", "1", "3", "-", "2", "-", "1", "-", "3", "page.md", "-", "1", "docs"]


def test_the_last_tag_or_a_named_commit_stands_beside_it(project, capsys):
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message", "first")
    git(project, "tag", "v1")
    (project / "tpmon/more.py").write_text("x = 1\n" * 21)
    for words in ([], ["HEAD"]):
        assert main(words, project) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(words[0] if words else "v1")
        assert "\n\nnow\n" in printed
        assert "\ntpmon: files 3 -> 4, lines 21 -> 42 (+100.0%)\n" in printed


def test_a_commit_that_is_not_there_is_named(project, capsys):
    assert main(["nowhere"], project) == 2
    assert "nowhere" in capsys.readouterr().err
