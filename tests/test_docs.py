"""The documents say what the program does: exit codes, settings, commands, targets, links."""

import lzma
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget.bench_hook import LOOPS, promise_us
from tests.readme import BLOCK, PAGES, PICTURES, write_page
from tpmon import __version__
from tpmon.commands.demo import BOTTLENECKS
from tpmon.errors import ExitCode
from tpmon.model.verdict import EXIT_CODES
from tpmon.settings import SETTINGS, ValueKind

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "news/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^(?:[A-Z-]+ \([a-z-]+\) |[a-z]+ {3,}\S+ |[═─]{2}|[-+!] )", re.MULTILINE)
"""How lines of tpmon's own begin: a verdict, a labelled row, a pane, evidence."""
SHELL_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
TARGET = re.compile(r"^([a-z][a-z-]*):.*## ", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")

# Put together here, so that this file does not name what it looks for.
MACHINE_PATHS = ["/" + "work/", "/" + "farm/", "/root/" + r"\.", "/tmp/" + "bash_jobs", r"/\.lib" + "rary"]


def section(text: str, title: str) -> str:
    """Return the part of a document below the heading ``title``."""
    return re.split(r"^## ", text.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def read_tracked() -> list[Path]:
    """Return the files that git would ship; without git, every file that is no build product."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_the_guide_lists_every_exit_code_once():
    codes = re.findall(r"^\| (\d+) \|", section(GUIDE, "Exit codes"), re.MULTILINE)
    assert [int(code) for code in codes] == [*sorted(ExitCode), *sorted(set(EXIT_CODES.values()))]


def test_the_guide_lists_every_setting_with_its_variable_key_and_default():
    rows = re.findall(r"^\| (.*) \|$", section(GUIDE, "Settings"), re.MULTILINE)
    cells = {row.split(" | ")[2].strip("`"): row.split(" | ") for row in rows[1:]}
    assert set(cells) == {setting.key for setting in SETTINGS}
    for setting in SETTINGS:
        flag, variable, _, default = cells[setting.key]
        assert setting.flag in flag
        assert variable == f"`{setting.variable}`"
        if setting.kind is ValueKind.SWITCH:
            assert default.startswith("off")
        elif setting.default is not None:
            shown = f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)
            assert shown in default


def test_the_guide_describes_every_bottleneck():
    described = re.findall(r"^\| `([a-z][a-z-]+)` \|", section(GUIDE, "The demo training"), re.MULTILINE)
    assert described == [one.name for one in BOTTLENECKS]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_each_picture_is_what_the_rules_and_the_painters_make_today(page):
    assert write_page(page) == page.read_text(), "run: make docs"


def test_a_block_that_shows_what_tpmon_prints_is_one_of_those_pictures():
    """docs/screens.md is written whole from the goldens; blocks without a language are diagrams and commands."""
    found = []
    for page in PAGES:
        text = page.read_text()
        found += [match[1] for match in BLOCK.finditer(text)]
        if page.name != "screens.md":
            assert len(BLOCK.findall(text)) == text.count("\n```text\n"), page.name
            plain = [block for language, block in FENCE.findall(text) if not language]
            assert not [block for block in plain if PRINTED.search(block)], page.name
    assert sorted(found) == sorted(PICTURES)
    assert BLOCK.search(README)


def test_the_readme_begins_with_the_two_commands_and_the_menu_has_them():
    first = SHELL_BLOCK.search(README)
    commands = [line.split("#")[0].split() for line in first.group(1).splitlines() if line.strip()]
    assert commands[:2] == [["make", "demo"], ["make", "test"]]
    assert first.start() < 6_000


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_that_a_document_names_exists(document):
    targets = set(TARGET.findall(MAKEFILE))
    named = re.findall(r"\bmake ([a-z][a-z-]+)", "\n".join(SHELL_BLOCK.findall(document.read_text())))
    named += re.findall(r"`make ([a-z][a-z-]+)", document.read_text())
    assert set(named) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(document):
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_menu_shows_every_target_and_make_accepts_each():
    shown = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = TARGET.findall(MAKEFILE)
    assert {"setup", "demo", "test", "check"} <= set(targets)
    for target in targets:
        assert f"make {target} " in shown
        subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)


def test_every_decision_has_a_number_of_its_own():
    titles = [path.read_text().splitlines()[0] for path in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    numbers = [path.name[:4] for path in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    assert len(set(numbers)) == len(numbers)
    for number, title in zip(numbers, titles, strict=True):
        assert re.match(rf"# (ADR )?0*{int(number)}\b", title), title


def test_the_recipes_name_files_and_names_that_are_there():
    recipes = (ROOT / "CONTRIBUTING.md").read_text().split("## Recipes")[1]
    named = re.findall(r"`((?:tpmon|tests|docs)/[^` ]+)`", recipes)
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []
    for name, path in re.findall(r"`(\w+)` in\s+`([\w/]+\.py)`", recipes):
        assert re.search(rf"^(class )?{name}\b", (ROOT / path).read_text(), re.MULTILINE), (name, path)


def test_the_changelog_begins_with_the_version_of_the_package():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[(.*)\] - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)[0] == __version__


def test_every_news_fragment_comes_into_the_next_release(tmp_path):
    for name in ("pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    fragments = shutil.copytree(ROOT / "news", tmp_path / "news")
    (fragments / "+made.fixed.md").write_text("`tpmon ps` shows the user of a job.")
    said = [path.read_text().strip() for path in fragments.iterdir() if path.name != "README.md"]
    subprocess.run([sys.executable, "-m", "towncrier", "build", "--keep", "--version", "9.0"], cwd=tmp_path, check=True)
    changelog = (tmp_path / "CHANGELOG.md").read_text()
    assert changelog.index("## [9.0]") < changelog.index(f"## [{__version__}]")
    assert [text for text in said if text not in changelog] == []


def test_what_is_verified_on_a_gpu_has_a_line_for_each_test_that_needs_one():
    written = [path.read_text() for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))]
    tests = [name for text in written for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)]
    page = (ROOT / "docs" / "verified-on-gpu.md").read_text()
    assert sorted(re.findall(r"`(test_\w+)` \|$", page, re.MULTILINE)) == sorted(tests)


def test_the_price_of_the_hook_is_all_of_its_last_table_and_names_each_miss():
    run = (ROOT / "docs" / "measured" / "hook.md").read_text().rpartition("\n# `make bench-hook`")[2]
    said = section((ROOT / "docs" / "overhead.md").read_text(), "The hook: `make bench-hook`")
    measured = re.findall(
        r"^\| (.+): (\d+) us of CPU a step \| .+ \| (([\d.]+) us \([-\d.]+ to [\d.]+\)), ", run, re.MULTILINE
    )
    assert [name for name, *_ in measured] == list(LOOPS)
    for name, step, figure, added in measured:
        (row,) = (line for line in said.splitlines() if f": {step} us " in line)
        assert f"| {promise_us(name):g} us | {figure}" in row
        assert ("**missed**" in row) is (float(added) > promise_us(name))


def test_the_licence_is_the_one_that_the_package_names():
    assert 'license = { text = "Apache-2.0" }' in (ROOT / "pyproject.toml").read_text()
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]


def test_nothing_names_a_path_of_one_machine():
    found = re.compile("|".join(MACHINE_PATHS))
    for path in read_tracked():
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        text = content.decode("utf-8", errors="replace")
        hit = found.search(text)
        assert hit is None, f"{path.relative_to(ROOT)}: {hit and hit.group()}"


def test_every_document_that_a_module_names_exists():
    """A comment may send its reader to a page only if the reader has it; pages link to their neighbours."""
    for path in (ROOT / "tpmon").rglob("*.py"):
        for name in re.findall(r"[\w./-]+\.md\b", path.read_text(encoding="utf-8")):
            assert (ROOT / name).exists() or (ROOT / "docs" / name).exists(), f"{path.name}: {name}"
