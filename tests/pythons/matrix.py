"""Try the hook on every Python here: without torch on 3.8 and newer, with torch on 3.10 and newer.

Prints a table. A Python that is not here is a row that says so, and no failure; ``--install`` makes
``.venv-3.x`` with torch for those that have none (several GB each where torch comes with CUDA).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.hook.test_hook_install import VERSIONS, find_pythons

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = ["tests/hook/test_hook_install.py", "tests/commands/test_run.py"]
ENDS = "tests/programs/test_capture_ends.py"
WITH_TORCH = [
    "tests/programs/test_hook_real.py",
    "tests/programs/test_capture_asked.py::test_a_capture_holds_the_steps_that_were_asked_for",
    f"{ENDS}::test_captures_end_as_they_should_whatever_happens",
    f"{ENDS}::test_torch_writes_nothing_for_a_capture_and_for_the_programs_own_profiler_what_it_ever_wrote",
    f"{ENDS}::test_a_loop_without_steps_is_captured_by_time",
    "tests/programs/test_late_capture.py",
]
"""Of the captures those that ask something of Python and its torch, not of tpmon beside them."""
TORCH_FROM = (3, 10)
ASK = "import sys, torch; print('%d.%d.%d' % sys.version_info[:3], torch.__version__)"


def run_tests(files: list[str], words: str, **more: str) -> str:
    """Run tests and return their counts, or the last lines where there are none."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    command += ["-k", words] if words else []
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    counts = re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout.rstrip().rpartition("\n")[2])
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return ", ".join(f"{many} {what}" for many, what in counts) or f"pytest ended with {done.returncode}"


def find_torch(version: str) -> tuple[str, str]:
    """Return the Python of that version that has torch, and both versions; "" and why not."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    path = sys.executable if version == own else str(ROOT / f".venv-{version}" / "bin" / "python")
    if not os.path.exists(path):
        return "", f"no .venv-{version}"
    asked = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
    return (path, asked.stdout.strip()) if asked.returncode == 0 else ("", f"no torch in .venv-{version}")


def install_torch(version: str, python: str, torch: str) -> None:
    folder = ROOT / f".venv-{version}"
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, torch], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="make .venv-3.x with torch where there is none")
    parser.add_argument("--torch", default="torch", help="what pip installs, such as torch==2.13.0")
    parser.add_argument("--only", default="", help="one version, such as 3.12")
    parser.add_argument("--without-torch", action="store_true", help="leave out the loops of a real torch")
    asked = parser.parse_args()
    pythons = find_pythons()
    failed = False
    print("| Python | hook without torch | torch | hook with torch |\n|---|---|---|---|", flush=True)
    for version in VERSIONS:
        if asked.only and version != asked.only:
            continue
        if version not in pythons:
            print(f"| {version} | skipped: not on this machine | | |", flush=True)
            continue
        free = run_tests(WITHOUT_TORCH, version)
        old = tuple(map(int, version.split("."))) < TORCH_FROM
        with_torch, told = "", "torch 2.13 has none for it" if old else "not tried"
        if not old and not asked.without_torch:
            path, told = find_torch(version)
            if not path and asked.install:
                install_torch(version, pythons[version], asked.torch)
                path, told = find_torch(version)
            with_torch = run_tests(WITH_TORCH, "", HOOK_PYTHON=path) if path else "skipped"
        failed = failed or "failed" in free + with_torch or "ended" in free + with_torch
        print(f"| {version} | {free} | {told} | {with_torch} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
