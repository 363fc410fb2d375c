"""Give every program that a test starts what a program started by hand has: its signals, and compiled modules."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.command_line import start_training
from tests.progress import Progress

if TYPE_CHECKING:
    from tests.hangs.beside import Beside

ROOT = Path(__file__).parent

# Many images set it; each of some hundred tpmons would then compile its modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(scope="session", autouse=True)
def plain_signals() -> Iterator[None]:
    """Catch what the caller of the tests ignores, for children inherit "ignored" but no handler.

    ``make test &`` in a script ignores ^C, ``nohup make test`` ignores the hang-up; a tpmon that
    a test starts would then keep ignoring them, as it should, and never end.
    """
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, lambda *_: None)  # the tests themselves go on ignoring it
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """Put back what a command that ran in this process changed: after ``tpmon run`` a broken pipe would end pytest."""
    before = {number: signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")


def start_nothing(event: str, _arguments: object) -> None:
    """Leave out the test that is about to start a process, itself or by a thread for which it waits."""
    if event in STARTS:
        if threading.current_thread() is not threading.main_thread():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)
            raise SystemExit  # it ends this thread without a word
        leave_out()


def leave_out(*_: object) -> None:
    pytest.skip("it starts a process")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out tests that start a process; draw few examples")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples each time, and ask of none how long it took: a loaded machine has no bugs more.

    ``HYPOTHESIS_PROFILE=default make test`` looks for others.
    """
    if TEST_PART and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(TEST_PART, config))
    if importlib.util.find_spec("hypothesis") is not None:  # not in the environments of older Pythons
        from hypothesis import HealthCheck, settings

        same = settings(settings.get_profile("ci"), suppress_health_check=list(HealthCheck))
        settings.register_profile("few", same, max_examples=5)
        settings.register_profile("some", same, max_examples=40)
        few = config.getoption("--fast")
        settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few" if few else "some"))


ALONE = ("budget", "gpu", "programs", "pty")
"""Folders whose tests want the machine for themselves."""
WAITS = {
    "pty": ("demo_screen", "fleet_screen", "hanging_mount", "replay_screen", "silent_card"),
    "commands": ("bundle", "dump", "sample"),
    "commands/recordings": ("record", "switch"),
    "fleet": ("agents", "bundle", "head", "launchers", "loop", "record"),
    "probe/gpu": ("child",),
    "probe/spy": ("denied", "dump_stops", "sample_probe"),
    "programs": ("exact_real", "hangs", "harmless", "pace_real"),
    "": ("supervisor",),
}
"""Tests that compute little and mostly wait, for deadlines and samples: make test runs them beside the others."""


BUDGET_OVER = os.environ.get("BUDGET_OVER", "")
TEST_PART = os.environ.pop("TEST_PART", "")  # not of a pytest that a test starts


def pytest_runtest_logstart(nodeid: str) -> None:
    """Let the tests that mostly wait begin once none of these measures a cost."""
    if BUDGET_OVER and not nodeid.startswith("tests/budget/"):
        (ROOT.parent / BUDGET_OVER).touch()


def pytest_itemcollected(item: pytest.Item) -> None:
    folder, _, name = str(item.path.relative_to(ROOT)).rpartition("/")
    if name.removeprefix("test_").removesuffix(".py") in WAITS.get(folder, ()):
        item.add_marker("waits")


@pytest.hookimpl(trylast=True)  # when those that nobody asked for are gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ask last about the programs that hang, and let them do so beside the tests that do not want to be alone."""

    def place(item: pytest.Item) -> int:
        asks = "hung_programs" in getattr(item, "fixturenames", ())
        return 2 if asks else int(item.path.relative_to(ROOT).parts[0] not in ALONE)

    items.sort(key=place)
    if items and place(items[-1]) == 2 and importlib.util.find_spec("torch") is not None:
        beside = next((item for item in items if place(item) == 1), items[-1])
        beside.fixturenames.insert(0, "hung_programs")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look out for processes from now on; while tests are found, some ask which programs are here.

    What was found lives as long as the tests: the garbage collector need not look through it again and again.
    """
    gc.freeze()
    if session.config.getoption("--fast"):
        signal.signal(signal.SIGUSR2, leave_out)
        sys.addaudithook(start_nothing)


@pytest.fixture(scope="session")
def sampling_works() -> None:
    """Skip where nobody may look at the stacks of a child."""
    from tests.spying import may_sample

    if reason := may_sample():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def hung_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    from tests.hangs.beside import Beside

    beside = Beside(tmp_path_factory.mktemp("hung"))
    yield beside
    beside.end()


@pytest.fixture(scope="session")
def job(sampling_works: None) -> Iterator[int]:
    """Give the PID of a process with torch that waits; every test leaves it as it is."""
    with start_training() as training:
        yield training.pid
        training.kill()


@pytest.fixture
def small_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the settings of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("TPMON_", "XDG_", "LC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
