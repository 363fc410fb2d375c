"""Whose a file of Python is, by its path: the program's, a package's, Python's own, or torch's.

A trace cuts paths at the entries of sys.path (``torch/nn/functional.py``, ``train.py``); a memory snapshot
has them whole. On Windows both have backslashes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import filterfalse, islice

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known

_CACHED = 1 << 16
_LINE = re.compile(r"^(?P<file>[^\n]+)\(\d{1,9}\): ?(?P<function>.*)$")
"""A Python function as torch writes it into a trace: ``train.py(131): train``."""
_CELL = re.compile(r"<(?:ipython-input|command|stdin)")
_STRING = "<string>"
_MADE = re.compile(r"/torchinductor_|/\.triton/")
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
_PYTHON = re.compile(r".*/lib(?:64)?/python3")
_LIBRARY = re.compile(r"^[a-z]:/.*/lib/(\w+)(?:\.py|/)", re.IGNORECASE)
"""Python's own library on Windows, by the first part of what lies in it."""
_TORCH = (
    "_\\w+ amp ao autograd backends compiler cuda distributed distributions fft func functional functorch "
    "futures fx hub jit library linalg masked mps multiprocessing nested nn onnx optim overrides package "
    "profiler quantization random serialization signal sparse special storage testing utils xpu"
).replace(" ", "|")
_OF_TORCH = re.compile(rf"(?:^|/)torch/(?:{_TORCH})(?:\.py|/)")
"""A folder of the program may be called torch, too."""
_PACKAGE = re.compile(
    r"(?:torch(?:vision|audio|data)|numpy|scipy|pandas|PIL|cv2|sklearn|matplotlib|transformers|tokenizers|datasets"
    r"|accelerate|peft|deepspeed|(?:pytorch_)?lightning|lightning_fabric|timm|einops|tqdm|wandb|vllm|sglang|triton"
    r"|IPython|ipykernel|traitlets|tornado|zmq|debugpy|site-packages|dist-packages)/|nest_asyncio\.py"
)
"""Of paths that are cut, what they begin with: ``datasets.py`` is of the program."""
_FOLDER = re.compile(
    r"(?:asyncio|collections|concurrent|ctypes|curses|dbm|distutils|email|encodings|importlib|multiprocessing"
    r"|pathlib|sqlite3|string|sysconfig|tomllib|unittest|urllib|wsgiref|xml|xmlrpc|zipfile|zoneinfo)/"
    r"|(?:(?:html|http|json|logging|re)/__\w+__|html/(?:entities|parser)|http/(?:client|cookiejar|cookies|server)"
    r"|json/(?:decoder|encoder|scanner|tool)|logging/(?:config|handlers)|re/_\w+)\.py$"
)
"""Of Python's own library, what is a folder: ``code/train.py`` and ``html/model.py`` are of the program."""


class LineOwner(IntEnum):
    """Name whose a file is, the nearest to the user first."""

    PROGRAM = 0
    PACKAGE = 1
    PYTHON = 2
    TORCH = 3


@lru_cache(_CACHED)
def find_owner(path: str, function: str = "", *, cut: bool = True) -> LineOwner:
    """Tell whose a file of Python is; ``cut``: paths of packages and of Python begin at their folders."""
    plain = path.replace("\\", "/")
    if plain.startswith("<"):
        typed = plain == _STRING and function == "<module>"
        return LineOwner.PROGRAM if typed or _CELL.match(plain) else LineOwner.PYTHON
    if _MADE.search(plain):
        return LineOwner.TORCH
    installed = _INSTALLED.match(plain)
    if installed:
        return LineOwner.TORCH if plain.startswith("torch/", installed.end()) else LineOwner.PACKAGE
    library = _LIBRARY.match(plain)
    if _PYTHON.match(plain) or (library and library[1].lower() in sys.stdlib_module_names):
        return LineOwner.PYTHON
    if cut and not re.match(r"/|[A-Za-z]:", plain):
        return _find_owner_of_cut(plain)
    return LineOwner.TORCH if _OF_TORCH.search(plain) else LineOwner.PROGRAM


def _find_owner_of_cut(path: str) -> LineOwner:
    if re.match(r"torch(?:\.py|/)", path):
        return LineOwner.TORCH
    if _PACKAGE.match(path):
        return LineOwner.PACKAGE
    is_python = _FOLDER.match(path) or path.removesuffix(".py") in sys.stdlib_module_names
    return LineOwner.PYTHON if is_python else LineOwner.PROGRAM


def owner_of_line(name: str) -> Applicable[LineOwner]:
    """Tell whose a Python function of a trace is; of what is no line of a file it is not applicable.

    ``<string>`` is code that a library made, or how a worker starts.
    """
    found = _LINE.match(name)
    if found is None or (found["file"].startswith("<") and not _CELL.match(found["file"])):
        return NOT_APPLICABLE
    return find_owner(found["file"], found["function"])


@dataclass(frozen=True, slots=True)
class ProgramCode:
    """Hold the outermost code of a program's stacks, and the files of it that are the program's.

    These are so whatever they are called: ``trace.py`` is Python's as well. What a package, ``<string>`` or a
    command without ``.py`` begins with is no more than where the program is launched.
    """

    starts: frozenset[str]
    files: frozenset[str]

    def owner_of(self, name: str) -> Applicable[LineOwner]:
        """Tell whose a Python function of a trace is; where it starts counts only without any other."""
        found = _LINE.match(name)
        if found is None:
            return NOT_APPLICABLE
        if name in self.starts and (found["file"] == _STRING or not found["file"].endswith((".py", ">"))):
            return LineOwner.PACKAGE
        return LineOwner.PROGRAM if found["file"] in self.files else owner_of_line(name)

    def is_own(self, name: str) -> bool:
        """Tell whether a function is of the program or a package: not of torch, nor of Python's library."""
        owner = self.owner_of(name)
        return is_known(owner) and owner <= LineOwner.PACKAGE


def find_program(starts: Collection[str]) -> ProgramCode:
    """Find the program by the lines that are outermost in its stacks, of which the code of files counts."""
    lines = [line for line in map(_LINE.match, starts) if line is not None and line["function"] == "<module>"]
    files = frozenset(line["file"] for line in lines if _is_main(line["file"]))
    return ProgramCode(frozenset(line[0] for line in lines), files)


def _is_main(path: str) -> bool:
    """Tell whether a file that is outermost is the program: not where ``python -m`` runs a package's."""
    in_folder = "/" in path.replace("\\", "/")
    known = in_folder and find_owner(path) in (LineOwner.PACKAGE, LineOwner.TORCH)
    return path != _STRING and not known


def leads_in(name: str) -> bool:
    """Tell whether a function is outside of the program: no line of a file, or what ``python -m`` runs."""
    found = _LINE.match(name)
    return found is None or found["file"] in ("runpy.py", "<frozen runpy>")


def rank_lines(stack: Sequence[str]) -> list[tuple[LineOwner, str]]:
    """Return the lines of a stack, innermost first, with whose they are, in their order."""
    program = find_program([*islice(filterfalse(leads_in, reversed(stack)), 1)])
    owned = ((program.owner_of(name), name) for name in stack)
    return [(owner, name) for owner, name in owned if is_known(owner)]
