"""Raise errors of the hook's own within it: at a line of it, or at the first of a function that is guarded; list what it left.

Imports neither torch nor the hook, so that a program may do so in any order after it.
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import tpmon

HERE = os.path.join(os.path.dirname(tpmon.__file__), "hook") + os.sep
Line = tuple[str, int]


def find_file(module: str) -> str:
    """Return the path of a module of the hook, by its name alone."""
    found = Path(HERE).rglob(f"{module}.py") if module != "__init__" else [HERE + "__init__.py"]
    (path,) = map(str, found)
    return path


def find_guarded(path: str) -> set[int]:
    """Return the lines within the body of a ``try`` that catches, but for words that do nothing.

    ``try`` and a bare ``return`` cannot fail, and Python guards neither.
    """
    with open(path) as file:
        tree = ast.parse(file.read())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    guarded = {
        line
        for node in blocks
        if node.handlers
        for part in node.body
        for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }
    idle = [node for node in ast.walk(tree) if is_idle(node)]
    return guarded - {node.lineno for node in (*blocks, *idle)}


def is_idle(node: ast.AST) -> TypeGuard[ast.stmt]:
    if isinstance(node, ast.Return):
        return node.value is None or isinstance(node.value, ast.Constant)
    return isinstance(node, (ast.Pass, ast.Continue, ast.Break))


GUARDED: dict[str, set[int]] = {}
SOURCE = """
import os, sys, threading

def watch(here, counts, act):
    def local(frame, event, arg):
        if event == "line" and counts(frame):
            act((os.path.basename(frame.f_code.co_filename), frame.f_lineno))
        return local

    def enter(frame, event, arg):
        return local if frame.f_code.co_filename.startswith(here) else None

    sys.settrace(enter)

def break_at(line):
    hit = []

    def act(at):
        if at == line and not hit:
            hit.append(at)
            raise ArithmeticError("broken on purpose at %s:%d" % line)

    return act

def break_in(file, function, guarded):
    hit = []

    def local(frame, event, arg):
        if event == "line" and frame.f_lineno in guarded and not hit:
            hit.append(frame.f_lineno)
            raise ArithmeticError("broken on purpose in %s" % function)
        return local

    def enter(frame, event, arg):
        return local if frame.f_code.co_name == function and frame.f_code.co_filename == file else None

    threading.settrace(enter)
    sys.settrace(enter)

def watch_entries(here, note):
    def enter(frame, event, arg):
        code, caller = frame.f_code, frame.f_back
        if not code.co_filename.startswith(here) or code.co_name == "<module>":
            return
        while caller is not None:
            if caller.f_code.co_filename.startswith(here):
                return
            caller = caller.f_back
        note("%s.%s" % (os.path.basename(code.co_filename)[:-3], code.co_name))

    threading.settrace(enter)
    sys.settrace(enter)
"""
MADE: dict[str, Callable[..., Any]] = {}
exec(compile(SOURCE, HERE + "steps.py", "exec"), MADE)  # an error of the hook's own, by its traceback


def break_in(where: str) -> None:
    """Raise once, at the first guarded line of a function of the hook that is reached: ``module.function``."""
    module, _, function = where.partition(".")
    path = find_file(module)
    MADE["break_in"](path, function, find_guarded(path))


def watch_entries(note: Callable[[str], None]) -> None:
    """Call ``note`` with each function of the hook that is entered while none of it runs in that thread."""
    MADE["watch_entries"](HERE, note)


def list_patched() -> list[object]:
    """Return what torch has at each place that the hook puts something into."""
    import torch
    from torch.autograd.profiler import profile
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    return [
        dataloader._BaseDataLoaderIter.__next__,
        torch.autograd._engine_run_backward,
        torch.autograd.graph._engine_run_backward,
        torch.amp.GradScaler.update,
        profile.__enter__,
        profile.__exit__,
        list(optimizer._global_optimizer_post_hooks),
    ]


def list_links() -> list[str]:
    """Return what the descriptors of this process are."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found
