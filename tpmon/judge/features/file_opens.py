"""Tell by stacks how much of loading goes into opening and looking up files: many small ones. Pure.

``open``, ``os.stat`` and ``os.scandir`` run in C and leave no frame: what is seen are the functions of Python
and of libraries that do nothing slow but call them. An ``open`` in the program's own lines is not, so that a
share is a lower bound. Stacks say what a wait is for, never that there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from tpmon.judge.answers.result import reading
from tpmon.judge.features.loader import Starved, find_starved
from tpmon.judge.features.once import Once
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.workers import LEAST_STACKS, working_stacks
from tpmon.judge.stacks.classify import classify
from tpmon.judge.stacks.frames import is_library, last_name
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import main_stacks
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.verdict import Evidence

OPENS_RATIO = 0.5
"""Share of the loading in opens and look-ups from which these are what is waited for, not bytes."""
STACKS_OF_LOADING = "stacks of the loading"

_STAT = (
    "exists lexists isfile isdir islink getsize getmtime getatime getctime samefile realpath _joinrealpath"
)
_LIBRARIES = tuple(
    (re.compile(file), frozenset(names.split()))
    for file, names in (
        (r"(?:^<frozen |/)(?:genericpath|posixpath)(?:>$|\.py$)", _STAT),
        (r"(?:^<frozen |/)os(?:>$|\.py$)", "walk _walk fwalk makedirs"),
        (r"/glob\.py$", "_listdir _iterdir _lexists _isdir"),
        (
            r"/pathlib(?:/\w+)?\.py$",
            "open stat lstat exists is_file is_dir is_symlink iterdir scandir resolve _scandir",
        ),
        (r"/PIL/Image\.py$", "open"),
        (r"/torchvision/datasets/folder\.py$", "pil_loader find_classes make_dataset"),
        (r"/torch/serialization\.py$", "_open_file.__init__ _open_zipfile_reader.__init__"),
        (r"/numpy/lib/_?npyio(?:_impl)?\.py$", "load"),
        (r"/fsspec/implementations/local\.py$", "_open open info ls exists isfile isdir created modified"),
    )
)
"""Functions of libraries whose own line is an open, a stat or a listing; a bare name or a qualified one."""
_OWN = frozenset(("open", "stat", "lstat", "scandir", "listdir", "getsize", "pil_loader"))
"""Names of the program's own functions that say the same."""


@lru_cache(maxsize=4096)
def _opens(function: str, file: str) -> bool:
    name = last_name(function)
    if not is_library(file):
        return name in _OWN
    return any(path.search(file) and (name in names or function in names) for path, names in _LIBRARIES)


def is_open(frames: tuple[StackFrame, ...]) -> bool:
    """Tell whether the innermost frame opens, looks up or lists files."""
    return bool(frames) and _opens(frames[-1].function, frames[-1].file)


def _loading_stacks(found: Starved, scene: Scene) -> Iterator[StackCount]:
    """Return the stacks of the rank's main thread while it gets its batches."""
    for frame in scene.history:
        for one in known_or(frame.stacks, ()):
            for stack in main_stacks(one) if one.pid == found.rank.process.pid else ():
                if classify(stack.frames)[0] is Phase.DATA_WAIT:
                    yield stack


def _share(stacks: Iterable[StackCount]) -> Known[float]:
    loading = opening = 0
    for stack in stacks:
        loading += stack.samples
        opening += stack.samples if is_open(stack.frames) else 0
    return opening / loading if loading >= LEAST_STACKS else Missing("stacks of the loading were not sampled")


def _find_open_share(scene: Scene) -> Known[float]:
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return Missing("no rank waits for its data")
    return _share((working_stacks if found.rank.has_workers else _loading_stacks)(found, scene))


find_open_share = Once(_find_open_share)
"""Return the share of the loading, 0-1, in opens and look-ups of the rank that waits longest for its data: of
its workers while they have work, of its main thread where it has none."""


def is_opening(scene: Scene) -> bool:
    """Tell whether most of the loading goes into opens and look-ups."""
    return known_or(find_open_share(scene), 0.0) >= OPENS_RATIO


def name_opens(scene: Scene) -> tuple[Evidence, ...]:
    """Return the share as a row of evidence where it is worth one."""
    share = find_open_share(scene)
    if not is_known(share) or share < OPENS_RATIO:
        return ()
    sources = scene.frame.sources
    return (reading("loading in open and stat", 100 * share, "%", sources.stacks, scene.frame.ages_s.stacks),)
