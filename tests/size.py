"""Print how large the project is, by package: ``make size``, or beside an older state ``make size AGAINST=REV``."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
ROOMS = ("tpmon", "tests", "docs")
DATA = (".toml", ".json")
KINDS = ("code", "docs", "comment", "blank", "data")


@dataclass(frozen=True)
class File:
    """Hold the sizes of one file: its lines by kind, and its longest function."""

    path: PurePosixPath
    lines: Counter[str]
    function: int = 0
    function_name: str = ""


def measure_file(path: str, text: str) -> File | None:
    """Count the lines of one file; None for a file of a kind that is not counted."""
    name = PurePosixPath(path)
    if name.suffix == ".py":
        lines, length, function = measure_python(text)
        return File(name, lines, length, function)
    kind = "docs" if name.suffix == ".md" else "data" if name.suffix in DATA and name.parts[0] == "tpmon" else ""
    if not kind:
        return None
    lines = text.splitlines()
    blank = sum(not line.strip() for line in lines)
    return File(name, Counter({kind: len(lines) - blank, "blank": blank}))


@cache  # two states of the project share most files
def measure_python(text: str) -> tuple[Counter[str], int, str]:
    """Count lines of code, docstring, comment and nothing, and find the longest function."""
    lines = text.splitlines()
    kinds = ["code"] * (len(lines) + 1)
    longest, name = 0, ""
    in_text = set()
    todo: list[ast.AST] = [ast.parse(text)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Constant | ast.JoinedStr):
            if node.end_lineno != node.lineno:
                in_text.update(range(node.lineno + 1, node.end_lineno + 1))
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kinds[node.lineno : node.end_lineno + 1] = ["docs"] * (node.end_lineno + 1 - node.lineno)
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno + 1 - node.lineno
            longest, name = max((longest, name), (length, node.name))
        todo.extend(ast.iter_child_nodes(node))
    for number, line in enumerate(lines, 1):
        start = line.lstrip()
        if kinds[number] == "code" and number not in in_text:
            if not start:
                kinds[number] = "blank"
            elif start[0] == "#":
                kinds[number] = "comment"
    return Counter(kinds[1:]), longest, name


@dataclass(frozen=True)
class Row:
    """Hold the sizes of one package with all that is below it."""

    name: str
    files: int
    lines: Counter[str]
    longest_file: str
    longest_function: str
    largest_folder: str

    @property
    def total(self) -> int:
        return self.lines.total()

    def cells(self) -> list[str]:
        numbers = [self.files, self.total, *(self.lines[kind] for kind in KINDS)]
        return [
            self.name,
            *(f"{number:,}" if number else "-" for number in numbers),
            self.longest_file,
            self.longest_function,
            self.largest_folder,
        ]


def sum_up(name: str, files: Sequence[File]) -> Row:
    file = max(files, key=lambda one: one.lines.total())
    function = max(files, key=lambda one: one.function)
    folders = Counter(str(one.path.parent) for one in files)
    folder, many = max(folders.items(), key=lambda one: one[1])
    return Row(
        name,
        len(files),
        sum((one.lines for one in files), Counter()),
        f"{file.lines.total()} {file.path.name}",
        f"{function.function} {function.function_name}" if function.function else "-",
        f"{many} {folder}",
    )


def list_rows(files: Sequence[File]) -> list[Row]:
    """Return a row for each room, and below it one for each of its packages, those of ``tpmon`` to the bottom."""
    rows = []
    for room in ROOMS:
        of_room = [one for one in files if one.path.parts[0] == room]
        deep = sys.maxsize if room == "tpmon" else 2
        packages = {one.path.parts[:depth] for one in of_room for depth in range(1, min(len(one.path.parts), deep + 1))}
        for package in sorted(packages):
            name = "  " * (len(package) - 1) + package[-1]
            rows.append(sum_up(name, [one for one in of_room if one.path.parts[: len(package)] == package]))
    return rows


def format_table(rows: Sequence[Row]) -> str:
    head = ["", "files", "lines", *KINDS, "longest file", "longest function", "largest folder"]
    table = [head, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = range(1, 3 + len(KINDS))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def compare(before: Sequence[Row], now: Sequence[Row]) -> list[str]:
    old = {row.name: row for row in before}
    return [
        f"{row.name}: files {old[row.name].files:,} -> {row.files:,}, "
        f"lines {old[row.name].total:,} -> {row.total:,} ({row.total / old[row.name].total - 1:+.1%})"
        for row in now
        if row.name in ROOMS and row.name in old
    ]


def git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout


def read_tree(root: Path) -> list[File]:
    """Measure the files of a checkout, those that git does not know yet too."""
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *ROOMS).decode().split("\0")
    paths = sorted({name for name in names if name and os.path.isfile(root / name)})
    return keep(measure_file(path, (root / path).read_text("utf-8", "replace")) for path in paths if is_counted(path))


def read_revision(root: Path, revision: str) -> list[File]:
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", revision))) as tree:
        found = [one for one in tree if one.isfile() and one.name.startswith(ROOMS) and is_counted(one.name)]
        return keep(measure_file(one.name, tree.extractfile(one).read().decode("utf-8", "replace")) for one in found)


def is_counted(path: str) -> bool:
    return path.endswith((".py", ".md", *DATA))


def keep(files: Iterable[File | None]) -> list[File]:
    return [one for one in files if one is not None]


def find_last_tag(root: Path) -> str:
    """Return the newest tag before this commit; empty where there is none."""
    try:
        return git(root, "describe", "--tags", "--abbrev=0").decode().strip()
    except subprocess.CalledProcessError:
        return ""


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    revision = arguments[0] if arguments else find_last_tag(root)
    now = list_rows(read_tree(root))
    if revision:
        try:
            before = list_rows(read_revision(root, revision))
        except subprocess.CalledProcessError:
            print(f"size: git knows no {revision!r} here", file=sys.stderr)
            return 2
        print(f"{revision}\n{format_table(before)}\n\nnow")
    print(format_table(now))
    if revision:
        print("", *compare(before, now), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
