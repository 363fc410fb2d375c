"""Hostile files of twenty kinds: a clear error or what could be read, in bounded memory, and nothing runs."""

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.snapshots import training
from tests.trace.reading.test_trace_read import mutate, small_trace, whole

Maker = Callable[[random.Random], bytes]


def cut(chance: random.Random) -> bytes:
    data = whole()
    return data[: chance.randrange(len(data))]


def cut_gzip(chance: random.Random) -> bytes:
    data = gzip.compress(whole(), 6)
    return data[: chance.randrange(3, len(data))]


def broken_gzip(chance: random.Random) -> bytes:
    data = bytearray(gzip.compress(whole(), 6))
    for _time in range(5):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def bomb(chance: random.Random) -> bytes:
    """Pack more of one byte behind the start of the events than one event may have."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    filler = chance.choice((b" ", b"[", b'"', b"0", b"{", b"\x00"))
    parts = [packer.compress(b'{"traceEvents": ['), *(packer.compress(filler * (1 << 20)) for _mb in range(40))]
    return b"".join([*parts, packer.flush()])


def wrong_types(chance: random.Random) -> bytes:
    values: list[object] = [None, True, [], {}, "x", -1, 1e308, 2**70, [[[]]], {"a": {"b": 1}}, ["\ud800"]]
    events = small_trace().events
    for event in events:
        for key in chance.sample(sorted(event), 2):
            event[key] = chance.choice(values)
        if isinstance(event.get("args"), dict):
            for key in ("correlation", "device", "stream", "Bytes", "Input Dims", "Total Allocated"):
                event["args"] = {**event["args"], key: chance.choice(values)}
    return json.dumps({"traceEvents": events, "deviceProperties": chance.choice(values)}).encode()


def deep(chance: random.Random) -> bytes:
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"args":', b"}]")))
    levels = chance.choice((100, 1000, 20_000, 200_000))
    inner = opening * levels + b"1" + closing * (levels if chance.random() < 0.7 else 0)
    return whole().replace(b'"device": 0', b'"device": ' + inner, 1)


def deep_header(chance: random.Random) -> bytes:
    levels = chance.choice((1000, 100_000))
    return b'{"deviceProperties": ' + b"[" * levels + b"]" * levels + b"," + whole()[1:]


def long_strings(chance: random.Random) -> bytes:
    text = chance.choice((b"x", b"\\u0041", b"\xff", b'\\"', b"\x01", b"%")) * chance.choice((10**5, 4 * 10**6))
    return whole().replace(chance.choice((b"aten::mm", b"ProfilerStep#2", b"SGD")), text, 1)


def many_names(chance: random.Random) -> bytes:
    """Give every one of 20,000 events a name, a thread and shapes of its own."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"{chance.random()}" * 9, "pid": str(at), "tid": at, "ts": at, "dur": 1,
         "args": {"Input Dims": [[at]]}}
        for at in range(20_000)
    ]  # fmt: skip
    return json.dumps({"traceEvents": events}).encode()


def odd_times(chance: random.Random) -> bytes:
    values = (b"NaN", b"Infinity", b"-1e300", b"1e17", b"-0.0", b'"soon"', b"9223372036854775807", b"4.6e15")
    text = whole()
    for _time in range(6):
        key = chance.choice((b'"ts": ', b'"dur": '))
        parts = text.split(key)
        at = chance.randrange(1, len(parts))
        rest = parts[at].lstrip(b"-0123456789.e+")
        parts[at] = chance.choice(values) + rest
        text = key.join(parts)
    return text


def same_links(_chance: random.Random) -> bytes:
    """Link 5,000 calls and 5,000 kernels by one correlation, all at one time, nested in one another."""
    trace = small_trace()
    for at in range(5000):
        trace.call("cudaGraphLaunch", 10, 5000 - at % 7, correlation=9).op("aten::mm", 10, 9000 - at)
        trace.add("kernel", "k", 10, 1e6, args={"device": at % 300, "stream": 7, "correlation": 9})
    return trace.text().encode()


def other_files(chance: random.Random) -> bytes:
    binary = (b"\x7fELF" + bytes(1000), b"PK\x03\x04" + bytes(1000), b"\x28\xb5\x2f\xfd" + bytes(100), bytes(100_000))
    coded = (b"\xef\xbb\xbf" + whole(), whole().decode().encode("utf-16"))
    odd = (b'{"traceEvents": {"a": 1}}', b'{"traceEvents": "x"}', b'"traceEvents": [' * 50, b"[" * 100_000)
    return chance.choice((*binary, *coded, *odd))


def mixed(chance: random.Random) -> bytes:
    return mutate(whole(), chance)


class Code:
    """Ask a reader of pickles to run something."""

    def __init__(self, what: Callable[..., object], *given: object) -> None:
        self._asked = (what, given)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._asked


def code(chance: random.Random) -> bytes:
    value = chance.choice(
        (
            Code(os.system, "touch executed"),
            Code(exec, "open('executed', 'w')"),
            Code(eval, "__import__('os').system('touch executed')"),
            Code(subprocess.Popen, ["touch", "executed"]),
            Code(open, "executed", "w"),
        )
    )
    inside: object = training().plain()
    assert isinstance(inside, dict)
    inside[chance.choice(("segments", "device_traces", "extra"))] = [value]
    return pickle.dumps(inside if chance.random() < 0.7 else value, chance.randrange(6))


def cut_pickle(chance: random.Random) -> bytes:
    data = pickle.dumps(training().plain(), chance.randrange(2, 6))
    return data[: chance.randrange(2, len(data))]


def mutated_pickle(chance: random.Random) -> bytes:
    data = bytearray(pickle.dumps(training().plain(), chance.randrange(2, 6)))
    for _time in range(chance.randint(1, 10)):
        data[chance.randrange(2, len(data))] = chance.randrange(256)
    return bytes(data)


def huge_pickle(chance: random.Random) -> bytes:
    """Ask for more than any memory has: lengths, nesting, sharing, a long number, values by the byte."""
    shares = b"\x80\x04]\x94(" + b"h\x00" * 10 + b"e"
    for level in range(1, 40):
        shares = shares[:-1] + b"e]\x94(" + bytes([ord("h"), level]) * 10 + b"e"
    return chance.choice(
        (
            b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"x.",
            b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"x.",
            b"\x80\x04" + b"(l" * 500_000 + b".",
            shares + b".",
            b"\x80\x04\x8b" + (10**6).to_bytes(4, "little") + bytes(10**6) + b".",
            b"\x80\x04(" + b"]" * 8_000_000 + b"e.",
            b"\x80\x04}(" + b"K\x01K\x02" * 100_000 + b"u.",
        )
    )


def odd_snapshot(chance: random.Random) -> bytes:
    values: list[object] = [None, -1, 2**65, "x", [], {}, 1.5, [None], {"a": 1}, True, ()]
    made = training().plain()
    for block in made["segments"][0]["blocks"] + made["segments"] + made["device_traces"][0]:
        for key in chance.sample(sorted(block), 3):
            block[key] = chance.choice(values)
    made[chance.choice(("segments", "device_traces", "extra"))] = chance.choice([*values, made["segments"]])
    return pickle.dumps(made)


def frames_of_anything(chance: random.Random) -> bytes:
    made = training().plain()
    odd: list[object] = [5, {"filename": 3, "line": "x", "name": None}, {"name": "\x1b[31m" * 1000}, None, [[]]]
    for block in made["segments"][0]["blocks"]:
        block["frames"] = [chance.choice(odd) for _one in range(chance.choice((3, 100_000)))]
    return pickle.dumps(made)


MAKERS: tuple[Maker, ...] = (
    *(cut, cut_gzip, broken_gzip, bomb, wrong_types, deep, deep_header, long_strings, many_names, odd_times),
    *(same_links, other_files, mixed, code, cut_pickle, mutated_pickle, huge_pickle, odd_snapshot),
    *(frames_of_anything, mixed),
)

CHILD = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
import tpmon.model.codec, tpmon.commands.trace, tpmon.report.trace, tpmon.trace.compare, tpmon.trace.snapshot
from tpmon.commands import trace
from tpmon.errors import TpmonError
from tpmon.report.text import Output
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
NEVER = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "socket.connect")
def watch(event, given):
    compiles = event == "compile" and "executed" in str(given[0])
    writes = event == "open" and given[0] != os.devnull and given[2] & 3
    if event in NEVER or compiles or writes:
        os.write(2, f"RAN {event} {given}\\n".encode())
        os._exit(99)
sys.addaudithook(watch)
for path in sys.argv[2:]:
    out = os.open(os.devnull, os.O_WRONLY)
    try:
        trace.Output = lambda *_: Output(out, False)
        trace.run_trace(trace.TraceOptions((path,)))
        said = "read"
    except TpmonError as error:
        said = "refused" if os.path.basename(path) in error.what else f"NO NAME {error.what}"
    except Exception as error:
        said = f"RAISED {type(error).__name__}: {error}"
    os.close(out)
    print(os.path.basename(path), said, flush=True)
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def examine(files: list[Path], directory: Path) -> dict[str, str]:
    """Read all files in one child that may take 1 GiB and run nothing; return what became of each."""
    root = str(Path(__file__).parents[2])
    asked = [sys.executable, "-c", CHILD, root, *map(str, files)]
    done = subprocess.run(asked, cwd=directory, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-2000:]
    *lines, peak = done.stdout.splitlines()
    assert int(peak.split()[1]) < 600, "MB of memory"
    assert not (directory / "executed").exists()
    return dict(line.split(" ", 1) for line in lines)


def write_files(makers: tuple[Maker, ...], times: int, directory: Path) -> list[Path]:
    files = []
    for number, maker in enumerate(makers):
        for seed in range(times):
            chance = random.Random(number * 1000 + seed)
            data = maker(chance)
            ending = chance.choice(("json", "pickle") if data[:1] == b"\x80" else ("json", "json.gz"))
            path = directory / f"{number:02}_{maker.__name__}_{seed}.{ending}"
            path.write_bytes(data)
            files.append(path)
    return files


def check(found: dict[str, str], files: list[Path]) -> None:
    assert list(found) == [path.name for path in files]
    assert not {name: said for name, said in found.items() if said not in ("read", "refused")}
    assert all(said == "refused" for name, said in found.items() if "_code_" in name)


def test_a_dozen_hostile_files_are_read_or_refused(tmp_path):
    quick = (cut, broken_gzip, wrong_types, deep, deep_header, odd_times, other_files)
    files = write_files((*quick, code, cut_pickle, mutated_pickle, odd_snapshot, frames_of_anything), 1, tmp_path)
    assert len(files) == 12
    check(examine(files, tmp_path), files)


@pytest.mark.long
def test_two_hundred_hostile_files_are_read_or_refused(tmp_path):
    files = write_files(MAKERS, 10, tmp_path)
    assert len(files) == 200
    found = examine(files, tmp_path)
    check(found, files)
    assert {"read", "refused"} == set(found.values())
