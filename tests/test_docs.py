"""The documents say what the program does: exit codes, settings, commands, targets, links."""

import lzma
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget.bench_hook import LOOPS, promise_us
from tests.goldens import film
from tests.readme import BLOCK, PAGES, PICTURES, write_page
from tpmon import __version__
from tpmon.capture import plan
from tpmon.cli import build_whole_parser
from tpmon.commands.demo import BOTTLENECKS
from tpmon.commands.diagnose import LOOK_S
from tpmon.errors import ExitCode
from tpmon.judge.dumps.merge import RESTS_RATIO
from tpmon.judge.features.card_use import ETA_S
from tpmon.judge.rules import hook as hook_rules
from tpmon.judge.rules.limits import NEAR_LIMIT
from tpmon.judge.watch.tracker import HANG_AFTER_S, MOST_HANG_AFTER_S
from tpmon.model.results.capture import DEAR_MS
from tpmon.model.verdict import EXIT_CODES
from tpmon.record.writer import RecordingBounds
from tpmon.settings import SETTINGS, ValueKind
from tpmon.trace import snapshot, timeline

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "news/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

GUIDES = ("slow", "hangs", "memory")
"""What somebody reads whose run is in trouble: a page each."""
HAND_WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("index", *GUIDES, "guide", "recording", "hook", "hook-bus")),
    *(ROOT / "docs" / f"{name}.md" for name in ("capture", "trace", "memory-snapshot", "permissions")),
]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^(?:[A-Z-]+ \([a-z-]+\) |[a-z]+ {3,}\S+ |[═─]{2}|[-+!] )", re.MULTILINE)
"""How lines of tpmon's own begin: a verdict, a labelled row, a pane, evidence."""
SHELL_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
TARGET = re.compile(r"^([a-z][a-z-]*):.*## ", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")

MOST_PICTURE_BYTES = 400_000
WORDS_A_SENTENCE = 18
LONGEST_SENTENCE = 40

# Put together here, so that this file does not name what it looks for.
MACHINE_PATHS = ["/" + "work/", "/" + "farm/", "/root/" + r"\.", "/tmp/" + "bash_jobs", r"/\.lib" + "rary"]


def list_sentences(text: str, *, cells: bool = True) -> list[str]:
    """Return the sentences of a page, code as one word; titles, bold openings and keys of JSON are none."""
    text = re.sub(r"^<!--.*-->$|^#.*$|^(?:[-*] )?\*\*.*?\*\*", "\n\n", FENCE.sub("\n", text), flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
    text = re.sub(
        r"^\* code(, code)*: .*$" if cells else r"^\* code(, code)*: .*$|^\|.*$", "", text, flags=re.MULTILINE
    )
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) |^\||\|", text, flags=re.MULTILINE)
    found = [one for block in blocks for one in re.split(r"(?<=[.!?])[\"*)]*\s+", block)]
    return [" ".join(one.split()) for one in found if re.search(r"\w", one)]


def list_commands(text: str) -> list[list[str]]:
    """Return the calls of tpmon that a page shows, in blocks and in sentences, without what a shell makes of them."""
    lines = [line.strip() for block in SHELL_BLOCK.findall(text) for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    calls = [call for line in lines for call in re.findall(r"(?:^|[\s(])(tpmon [^#|&;><()]*)", line.split("  #")[0])]
    words = [shlex.split(call.replace("[", "").replace("]", "").replace("...", "")) for call in calls]
    return [[word for word in one[1:] if word not in ("COMMAND", "\\")] for one in words]


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


@pytest.mark.parametrize(
    ("picture", "page"), [(film.ANIMATION, ROOT / "README.md"), (film.STILL, ROOT / "docs/index.md")]
)
def test_a_film_shows_what_the_demo_says_today(picture, page):
    words = film.read_words(picture)
    assert [line for line in film.paint_verdict() if line not in words] == [], "run: make pictures"
    assert f"({picture.relative_to(page.parent)})" in page.read_text()
    assert picture.stat().st_size <= MOST_PICTURE_BYTES


def test_what_a_film_must_show_says_that_it_is_recorded_and_goes_as_far_as_what_to_do():
    title, badge, *rest = film.paint_verdict()
    assert title.startswith("recorded, not live, ")
    assert badge.startswith("! DATA-BOUND network-store costs ")
    assert [line for line in rest if line.startswith("DO ")]


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


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's titles, as both GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", title)).strip().lower() for title in titles]
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_into_a_page_leads_to_a_title(document):
    text = FENCE.sub("", document.read_text())
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", text):
        page = document.parent / target if target else document
        assert anchor in list_anchors(page), f"{target}#{anchor}"


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda path: path.stem)
def test_sentences_are_short(page):
    text = page.read_text()
    assert [one for one in list_sentences(text) if len(one.split()) > LONGEST_SENTENCE] == []
    lengths = [len(one.split()) for one in list_sentences(text, cells=False)]
    assert sum(lengths) / len(lengths) <= WORDS_A_SENTENCE


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda path: path.stem)
def test_no_page_uses_the_words_of_the_code_for_what_has_a_plain_one(page):
    plain = re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text()))
    assert re.findall(r"\b(?:prices?|onset|stances?|sights?|looks at all|shaken)\b", plain) == []


def test_words_are_counted_a_sentence():
    page = "# A title\n\n**Bold.** One `tpmon ps` two. Three [four five](six.md)\nseven!\n\n* Eight nine\n| ten | eleven. |\n"
    assert list_sentences(page) == ["One code two.", "Three four five seven!", "Eight nine", "ten", "eleven."]
    assert list_sentences(page, cells=False)[-1] == "Eight nine"


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_is_one_page(name):
    assert len((ROOT / "docs" / f"{name}.md").read_text().split()) <= 500


def test_the_pages_have_no_more_words_than_somebody_can_keep_right():
    assert sum(len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md")) <= 60_000


def test_the_readme_is_a_screen_and_a_half():
    assert len(README.splitlines()) <= 75


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda path: path.stem)
def test_every_command_that_a_page_shows_is_one(page):
    parser = build_whole_parser()
    for words in list_commands(page.read_text()):
        own = words[: words.index("--")] if words[:1] == ["run"] and "--" in words else words
        if {"-h", "--help", "--print-config", "--version"} & set(own) or len(own) < 2:
            assert not own or own[0].startswith("-") or own[0] in parser.format_help(), own
        else:
            parser.parse_args(own)


def test_the_commands_of_a_page_are_found_in_blocks_and_sentences():
    page = "```sh\nsudo tpmon attach 7 --once  # now\ntpmon dump 7 | tpmon fold -\n```\nSay `tpmon trace FILE...`.\n"
    assert list_commands(page) == [["attach", "7", "--once"], ["dump", "7"], ["fold", "-"], ["trace", "FILE"]]


def test_the_site_has_every_page_once_and_the_index_leads_to_each_but_measurements_and_decisions():
    docs = ROOT / "docs"
    nav = re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(nav) == sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))
    linked = {*LINK.findall((docs / "index.md").read_text()), "index.md"}
    assert [name for name in nav if name not in linked and name.count("/") == 0] == []


STATED = [
    ("guide", HANG_AFTER_S, "no log line is written for {:.0f} s"),
    ("guide", MOST_HANG_AFTER_S / 60, "({} minutes at most)"),
    ("guide", 100 * RESTS_RATIO, "used at most {:.0f} % of a CPU"),
    ("guide", LOOK_S, "watch for {:.0f} s; all of the verdict"),
    ("slow", LOOK_S, "watch for {:.0f} s, then the verdict"),
    ("hangs", HANG_AFTER_S, "takes {:.0f} seconds in which nothing moves"),
    ("hangs", LOOK_S, "watches for {:.0f}, and may"),
    ("memory", ETA_S / 3600, "full within {} hour"),
    ("memory", 100 * NEAR_LIMIT, "is {:.0f} % full"),
    ("hook", hook_rules.FIRST_STEPS, "before its {} step is starting"),
    ("hook", hook_rules.FIRST_STEPS_AGE_S / 60, "less than {} minutes old"),
    ("capture", DEAR_MS / 1000, "A pause of more than {:.0f} s"),
    ("capture", plan.MOST_EVENTS, "More than {:,} events"),
    ("capture", plan.MOST_BYTES >> 20, "events or {} MiB are cut"),
    ("capture", plan.MOST_ENTRIES, "its {:,} allocations"),
    ("recording", RecordingBounds().most_bytes >> 20, "`--max-size` ({}M)"),
    ("recording", RecordingBounds().whole_s / 3600, "kept for {} hours"),
    ("memory-snapshot", snapshot.MOST_EVENTS, "the newest {:,}\nevents"),
    ("trace", timeline.MOST_KEPT_EVENTS // 1_000_000, "at most {} million events"),
]
IN_WORDS = {0.5: "half an", 3: "third", 6.0: "six", 10.0: "ten"}


@pytest.mark.parametrize(("page", "value", "phrase"), STATED, ids=[f"{page}: {phrase}" for page, _, phrase in STATED])
def test_a_number_that_a_page_states_is_that_of_the_program(page, value, phrase):
    said = phrase.format(IN_WORDS.get(value, value) if "{}" in phrase or "minutes" in phrase else value)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert " ".join(said.split()) in " ".join(text.split())


def test_the_readme_states_what_the_menu_and_the_measurements_do():
    (core,) = re.findall(r"that is ([\d.]+ %) of one core", README)
    overhead = (ROOT / "docs" / "overhead.md").read_text()
    assert re.search(rf"^\| tpmon at 200x50 with 8 cards.*\| {core} \|$", overhead, re.MULTILINE)
    (time,) = re.findall(r"^make test +# the tests: (up to \w+ minutes)", README, re.MULTILINE)
    assert re.search(rf"^test:.*## .*: {time}$", MAKEFILE, re.MULTILINE)


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
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()
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
