"""Completions and the manual page have every flag of every command, and a wheel has them under share/."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from release.pages import MANUAL, PAGES, write_manual

from tpmon.cli import PLACES, build_whole_parser
from tpmon.commands import run as run_command
from tpmon.completion import HELP, SHELLS, list_parsers, write_completion

ROOT = Path(__file__).parents[2]


def list_flags() -> dict[str, set[str]]:
    """Return the flags of each command, help aside, which every one has."""
    return {
        one.prog: {name for action in one._actions for name in action.option_strings} - {"-h", "--help"}
        for one in list_parsers(build_whole_parser())
    }


def test_the_parser_has_every_command_and_those_written_by_hand():
    flags = list_flags()
    assert set(flags) == {"tpmon", *(f"tpmon {name}" for name in PLACES)}
    assert flags["tpmon run"] >= {*run_command._SWITCHES, "--log"}
    words = (run_command.HELP + HELP).split()
    assert {one for one in words if one.startswith("--") and one[2:].isalpha()} - {"--help"} <= set.union(
        *flags.values()
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_every_flag_of_every_command_is_completed(shell):
    text = write_completion(build_whole_parser(), shell)
    for command, flags in list_flags().items():
        name = command.replace(" ", "_")
        if shell == "bash":
            line = next(one for one in text.splitlines() if one.startswith(f"_shtab_{name}_option_strings="))
            assert flags <= set(line.partition("=")[2].strip("()").replace("'", "").split()), command
        for flag in flags:
            assert (flag if shell != "fish" else flag.lstrip("-")) in text, (command, flag)
    assert all(name in text for name in PLACES)


def test_every_flag_of_every_command_is_in_the_manual():
    text = write_manual().replace("\\-", "-")
    for command, flags in list_flags().items():
        part = text.partition(f"\\fB{command}\\fR")[2].partition(".SS")[0] if " " in command else text
        for flag in flags:
            assert f"\\fB{flag}\\fR" in part, (command, flag)


def test_a_shell_that_is_none_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "tpmon", "completion", "tcsh"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "one of bash, zsh, fish" in done.stderr


def test_bash_reads_what_is_printed():
    script = write_completion(build_whole_parser(), "bash")
    asks = "\nCOMP_WORDS=(tpmon dump --lo); COMP_CWORD=2; _shtab_tpmon; echo ${COMPREPLY[@]}"
    done = subprocess.run(["bash", "-c", script + asks], capture_output=True, text=True, timeout=30, check=False)
    assert "--locals" in done.stdout.split(), done.stderr


@pytest.mark.pyz
def test_a_wheel_has_pages_types_and_metadata_by_todays_rules(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    source = tmp_path / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    for name in listed.stdout.split("\n"):
        if name.startswith(("tpmon/", "release/")) or name in {
            "pyproject.toml",
            "setup.py",
            "README.md",
            "LICENSE",
            "MANIFEST.in",
        }:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run([*build, str(source)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert "tpmon/py.typed" in names
    for place in (*PAGES, MANUAL):
        assert [one for one in names if one.endswith(f".data/data/{place}")], place
    assert not [one for one in names if one.startswith(("release/", "tests/"))]
    about = archive.read(next(one for one in names if one.endswith("dist-info/METADATA"))).decode().partition("\n\n")[0]
    assert "License-Expression: Apache-2.0" in about
    assert "License-File: LICENSE" in about
    assert "Classifier: License" not in about
    for minor in range(10, 15):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}" in about
    needs = [one for one in about.splitlines() if one.startswith("Requires-Dist: ") and "extra ==" not in one]
    assert not [one for one in needs if "psutil" in one]
