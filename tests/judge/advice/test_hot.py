"""The known call that takes most of the time: by its library's frames, else by the text of its line in C."""

from dataclasses import replace

import pytest

from tests.frames import make_frame, make_process
from tests.judging import scene_of
from tests.stacks import LIB, MAIN
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import gather_facts, observe
from tpmon.judge.advice.hot import CALLS, find_call, find_hot
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.finding import _say_stepless
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.stacks import SourceLine, StackCount, StackFrame, StackSlice
from tpmon.model.verdict import Kind

OWN = StackFrame("any_name", "/home/me/whatever.py", 19)
SLOW = Suspicion(Kind.PYTHON_BOUND, "single-thread", 0.5, 2.0, frozenset(("a",)), "text", (), pid=4211)
AT_OWN = (MAIN, OWN)


def look(text, frames=AT_OWN, other=0):
    frame = make_frame(processes=(make_process(4211, rank=0),), loader=())
    stacks = (StackCount(4211, "MainThread", frames, 30), StackCount(4211, "MainThread", (MAIN,), other))
    source = (SourceLine(OWN.file, OWN.line, text),) if text else NOT_APPLICABLE
    taken = StackSlice(4211, 0, frame.taken, frame.taken_ns, 3.0, 10.0, 30 + other, stacks, source=source)
    return scene_of(replace(frame, stacks=(taken,)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gc.collect()", "gc-collect"),
        ("with zipfile.ZipFile(self.path) as archive:", "zip-open"),
        ("row = json.loads(line)", "json-parse"),
        ("data = pickle.load(file)", "pickle-load"),
        ("table = pd.read_csv(path)", "read-csv"),
        ("batch = next(iter(loader))", "loader-in-loop"),
        ("time.sleep(0.05)", "sleep"),
        ("names = os.listdir(folder)", "list-files"),
        ("dist.all_gather_object(out, mine)", "object-collective"),
        ("step(batch)  # then gc.collect()", ""),
        ("my_gc.collection()", ""),
        ("", ""),
    ],
)
def test_a_line_that_runs_in_c_is_told_by_its_text(text, name):
    assert find_call(AT_OWN, {(OWN.file, OWN.line): text}) == (name, "whatever.py:19")


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("json/decoder.py", "raw_decode", "json-parse"),
        ("zipfile.py", "_RealGetContents", "zip-open"),
        ("site-packages/torch/distributed/distributed_c10d.py", "all_gather_object", "object-collective"),
        ("site-packages/accelerate/data_loader.py", "skip_first_batches", "skip-batches"),
        ("site-packages/PIL/Image.py", "convert", "image-decode"),
        ("site-packages/torch/nn/modules/linear.py", "forward", ""),
    ],
)
def test_a_library_s_frame_tells_it_whatever_the_line_says(file, function, name):
    frames = (*AT_OWN, StackFrame(function, f"{LIB}/{file}", 5))
    assert find_call(frames, {(OWN.file, OWN.line): "gc.collect()"})[0] == name


def test_files_of_the_program_that_are_called_like_a_library_are_none():
    own = StackFrame("loads", "/home/me/json/__init__.py", 3)
    assert find_call((MAIN, own), {})[0] == ""


def test_the_line_is_named_with_what_to_do_first_where_it_takes_a_fifth_of_the_time():
    scene = look("gc.collect()", other=60)
    hot = find_hot(scene, SLOW)
    assert is_known(hot)
    assert (hot.call, hot.place) == (CALLS["gc-collect"], "whatever.py:19")
    observed = observe(scene, SLOW)
    assert {Need.HOT_CALL_SEEN, Need.HOT_CALL_WASTED} <= observed
    first = choose(SLOW.kind, SLOW.cause, observed | {Need.ONE_THREAD_BUSY}, gather_facts(scene, SLOW))[0]
    assert (first.remedy.id, first.certain) == ("mend-hot-call", True)
    assert first.text.startswith("change the line that takes the time: collect garbage every 500 steps")
    assert is_known(find_hot(look("gc.collect()", other=200), SLOW)) is False
    assert find_hot(look(""), SLOW) is NOT_APPLICABLE
    assert Need.HOT_CALL_SEEN not in observe(scene, replace(SLOW, kind=Kind.HUNG, cause="lock"))


@pytest.mark.parametrize(
    ("step_age_s", "log_age_s", "said"),
    [
        (40.0, 1.0, "; no step was seen for 40 s"),
        (2.0, 500.0, ""),
        (None, 500.0, "; no step was seen: the log is silent for 8m20s"),
        (None, 20.0, ""),
    ],
)
def test_a_verdict_about_speed_says_that_no_step_was_seen(step_age_s, log_age_s, said):
    frame = make_frame()
    rows = frame.ranks if step_age_s is None else tuple(replace(one, step_age_s=step_age_s) for one in frame.ranks)
    output = tuple(replace(one, last_write_age_s=log_age_s) for one in frame.output)
    scene = scene_of(replace(frame, ranks=rows, output=output))
    assert _say_stepless(SLOW, scene).startswith(said)
    assert bool(_say_stepless(SLOW, scene)) is bool(said)
    assert _say_stepless(replace(SLOW, kind=Kind.HUNG, cause="lock"), scene) == ""
