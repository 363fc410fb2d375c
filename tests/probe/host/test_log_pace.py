"""Which lines of a training's log tell how its steps go, and which only look like it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log_tails import START_S, TAIL_BYTES, Write, bar, follow, loss_of, steady
from tpmon.model.host import LogPace, PaceSource
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.host.log_lines import NumberLine, parse_line, parse_loss
from tpmon.probe.host.log_pace import MOST_LINES, NO_STEPS_TOLD, LogFollower, LogTail


def endless(hz: float, unit: str = "it") -> Callable[[int], str]:
    return lambda step: f"\r{step}{unit} [{int(step / hz) // 60:02d}:{int(step / hz) % 60:02d}, {hz:5.2f}{unit}/s]"


def nested(hz: float, batches: int) -> Iterator[Write]:
    """Yield two bars without names: epochs outside, batches inside."""
    for at_s, text in steady(bar(batches, hz), hz, 3):
        yield at_s, text
        if round(at_s * hz) % batches < 3:
            epoch = round(at_s * hz) // batches
            yield at_s + 0.01, f"\n\r{epoch * 10:3d}%|█  | {epoch}/10 [00:10<01:40, {batches / hz:.2f}s/it]\x1b[A"


def trainer(hz: float) -> Iterator[Write]:
    """Yield a bar, a dict of losses every 20 steps, and another bar without a name for an evaluation."""
    at_s, step = 0.0, 0
    while at_s < 60:
        step += 5
        at_s += 5 / hz
        yield at_s, bar(5000, hz)(step)
        if step % 20 == 0:
            yield at_s + 0.001, f"{{'loss': {loss_of(step):.4f}, 'grad_norm': 1.{step}, 'epoch': {step / 625:.2f}}}\n"


def interrupted(hz: float) -> Iterator[Write]:
    """Yield a bar of training, then from 40 s on only that of an evaluation, which is far faster."""
    yield from steady(bar(5000, hz), hz, 4, until_s=40)
    for at_s, text in steady(bar(125, 6.0), 6.0, 3, until_s=18):
        yield 40 + at_s, text


def buffered(line: Callable[[int], str], hz: float) -> Iterator[Write]:
    """Yield what a Python writes into a file: blocks of 8,192 bytes, which end anywhere."""
    kept = ""
    for at_s, text in steady(line, hz):
        kept += text
        if len(kept) >= 8192:
            yield at_s, kept[:8192]
            kept = kept[8192:]


def interleaved(ranks: int, line: Callable[[int, int], str], hz: float) -> Iterator[Write]:
    for at_s, _text in steady(str, hz):
        step = round(at_s * hz)
        for rank in range(ranks):
            yield at_s + 0.01 * rank, line(rank, step)


def epochs(line: Callable[[int, int], str], hz: float, batches: int) -> Iterator[Write]:
    """Yield lines whose batch begins anew with each epoch."""
    return steady(lambda step: line(step // batches, step % batches), hz)


def plain(step: int) -> str:
    return f"step {step} loss {loss_of(step):.3f}\n"


_PACES: dict[str, tuple[Iterable[Write], float]] = {
    "tqdm": (steady(bar(5000, 9.41), 9.41), 9.41),
    "tqdm, postfix": (steady(bar(5000, 3.2, post=lambda s: f", loss={loss_of(s):.2f}, lr=3e-4"), 3.2), 3.2),
    "tqdm, s/it": (steady(bar(900, 0.4), 0.4), 0.4),
    "tqdm, a name": (steady(bar(800, 5.5, "Training: "), 5.5, 4), 5.5),
    "tqdm, without a total": (steady(endless(7.25), 7.25), 7.25),
    "tqdm, steps as unit": (steady(bar(5000, 2.5, "Steps: ", "step"), 2.5), 2.5),
    "tqdm, images with a loss": (
        steady(bar(9000, 33.0, "Epoch 1/5: ", "img", lambda s: f", loss (batch)={loss_of(s):.3f}"), 33.0, 33),
        33.0,
    ),
    "tqdm, an epoch with its number": (steady(bar(60, 4.0, "Epoch 3: "), 4.0), 4.0),
    "tqdm, a bar of batches": (steady(bar(90, 7.5, "batches: "), 7.5, 2), 7.5),
    "tqdm, nested": (nested(12.0, 60), 12.0),
    "Trainer": (trainer(4.0), 4.0),
    "Trainer, in its evaluation": (interrupted(2.0), 2.0),
    "Lightning": (
        steady(bar(1000, 10.0, "Epoch 3: ", post=lambda s: f", v_num=0, train_loss={loss_of(s):.3f}"), 10.0, 20),
        10.0,
    ),
    "a bar of rich": (
        steady(lambda s: f"Epoch 3/9 ━━━━╸━━━━ {s}/4000 0:00:42 • 0:06:58 6.00it/s v_num: 0\n", 6.0, 6),
        6.0,
    ),
    "accelerate": (
        steady(bar(15000, 1.6, "Steps: ", post=lambda s: f", lr=1e-5, step_loss={loss_of(s):.3f}"), 1.6),
        1.6,
    ),
    "torchtune": (steady(lambda s: bar(900, 1.98, f"1|{s}|Loss: {loss_of(s):.6f}: ")(s), 1.98), 1.98),
    "torchtune, its file": (
        steady(lambda s: f"Step {s} | loss:{loss_of(s):.5f} lr:2e-05 tokens_per_second_per_gpu:1234.5\n", 2.2),
        2.2,
    ),
    "torchtitan": (
        steady(
            lambda s: f"[titan] INFO - step: {s:2d}  loss:  {loss_of(s):.4f}  memory: 12.3GiB(40%)  mfu: 41%\n", 1.5, 10
        ),
        1.5,
    ),
    "nanoGPT": (
        steady(lambda s: f"iter {s}: loss {loss_of(s):.4f}, time 135.20ms, mfu 12.30%\n", 1 / 0.1352, 10),
        1 / 0.1352,
    ),
    "Megatron": (
        steady(
            lambda s: (
                f" [2026-03-14 03:07:{s % 60:02d}] iteration {s:8d}/  500000 | consumed samples: {s * 256:12d} |"
                f" elapsed time per iteration (ms): 2500.0 | lm loss: {loss_of(s):.6E} | grad norm: 1.2 |\n"
            ),
            0.4,
        ),
        0.4,
    ),
    "DeepSpeed": (
        steady(
            lambda s: (
                f"[2026-03-14 03:07:41,{s % 1000:03d}] [INFO] [timer.py:197:stop] 0/{s}, RunningAvgSamplesPerSec=81.2,"
                f" MemAllocated=12.3GB\n[INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]\n"
            ),
            3.0,
            10,
        ),
        3.0,
    ),
    "fairseq": (
        steady(lambda s: f'{{"epoch": 1, "loss": "{loss_of(s):.3f}", "ups": "3.21", "num_updates": "{s}"}}\n', 3.21, 8),
        3.21,
    ),
    "mmengine": (
        steady(
            lambda s: (
                f"03/14 03:07:41 - mmengine - INFO - Epoch(train)  [1][{s:4d}/5000]  lr: 1.0e-02  eta: 1:02:03"
                f"  time: 0.2000  data_time: 0.0102  memory: 1234  loss: {loss_of(s):.4f}\n"
            ),
            5.0,
            50,
        ),
        5.0,
    ),
    "detectron2": (
        steady(
            lambda s: (
                f"[03/14 03:07:41 d2.utils.events]:  eta: 1:02:03  iter: {s}  total_loss: {loss_of(s):.3f}"
                f"  time: 0.3100  last_time: 0.31 data_time: 0.0102  lr: 0.02  max_mem: 1234M\n"
            ),
            1 / 0.31,
            20,
        ),
        1 / 0.31,
    ),
    "batches of an epoch in brackets": (
        steady(
            lambda s: f"Epoch: [3][{s:4d}/5004]\tTime  0.123 ( 0.130)\tData  0.001 ( 0.002)\tLoss {loss_of(s):.4e}\n",
            8.0,
            10,
        ),
        8.0,
    ),
    "samples of an epoch": (
        steady(lambda s: f"Train Epoch: 1 [{s * 64}/60000 ({s * 64 // 600}%)]\tLoss: {loss_of(s):.6f}\n", 5.0, 10),
        320.0,
    ),
    "Keras 3": (steady(lambda s: f"\r{s}/900 ━━━━━━━ 3s 400ms/step - loss: {loss_of(s):.4f}", 2.5), 2.5),
    "plain": (steady(plain, 3.7), 3.7),
    "plain, every 50 steps": (steady(plain, 20.0, 50), 20.0),
    "plain, slow": (steady(plain, 0.05), 0.05),
    "plain, in blocks of Python": (buffered(plain, 150.0), 150.0),
    "plain, thousands": (
        steady(lambda s: f"[train] step {s:,} / 1,000,000: loss={loss_of(s):.3f}\n", 6.0, 3, first=12_000),
        6.0,
    ),
    "plain, only the step": (steady(lambda s: f"step {s}\n", 2.0), 2.0),
    "plain, another line follows": (
        steady(lambda s: f"global_step={s} loss={loss_of(s):.2f}\nsaved to /tmp/out\n", 4.0, 2),
        4.0,
    ),
    "plain, epochs": (epochs(lambda e, b: f"epoch {e} batch {b}/80 loss {loss_of(b):.4f}\n", 4.0, 80), 4.0),
    "plain, epoch and step in brackets": (
        steady(lambda s: f"Epoch [2/5], Step [{s}/600], Loss: {loss_of(s):.4f}\n", 4.8, 4),
        4.8,
    ),
    "plain, steps of the optimizer": (
        steady(lambda s: f"micro_step={4 * s} optimizer_step={s} loss={loss_of(s):.3f}\n", 2.1, 2),
        2.1,
    ),
    "JSON": (
        steady(lambda s: f'{{"loss": {loss_of(s):.3f}, "val_loss": 2.1, "step": {s}, "time": {s / 3:.1f}}}\n', 3.0),
        3.0,
    ),
    "several ranks in one file": (
        interleaved(4, lambda r, s: f"[rank{r}]: step {s} loss {loss_of(s + r):.3f}\n", 2.0),
        2.0,
    ),
    "several ranks, one late": (
        interleaved(4, lambda r, s: f"[rank{r}]: step {s - r % 2} loss {loss_of(s + r):.3f}\n", 8.0),
        8.0,
    ),
    "a flood of other lines": (
        steady(lambda s: plain(s) + "debug: nothing of note in this line of the program\n" * 40, 3.0),
        3.0,
    ),
    "own format, without names": (steady(lambda s: f"{s:06d} | {loss_of(s):.4f} | {0.1 / s:.6f} | ok\n", 3.3), 3.3),
    "own format, tokens beside": (
        steady(lambda s: f"03:07:41 <{s}> {s * 4096} nll {loss_of(s):.3f} gn 0.{s % 9}1\n", 2.7, 10),
        2.7,
    ),
    "own format, of a total": (steady(lambda s: f"({s}/9000) nll {loss_of(s):.3f}\n", 4.4, 20), 4.4),
}


PACES = {name: (tuple(writes), hz) for name, (writes, hz) in _PACES.items()}


@pytest.mark.parametrize("name", PACES)
def test_a_pace_is_right_within_five_percent(name):
    writes, hz = PACES[name]
    pace = follow(writes)
    assert is_known(pace), pace
    assert pace.rate_hz == pytest.approx(hz, rel=0.05)


def count(template: str, hz: float = 2.0, first: int = 0) -> Iterator[Write]:
    """Yield a template with the step as ``n`` and a figure that varies as ``x``."""
    return steady(lambda step: template.format(n=step, x=loss_of(step), pct=step % 101), hz, first=first)


DICE = random.Random(7)
STAGES = ("loading the data", "building the model", "compiling", "resuming")

NOTHING: dict[str, Iterable[Write]] = {
    "epochs with losses": count("Epoch {n}/100 - loss {x:.3f} - val_loss {x:.3f}\n", 0.1),
    "epochs in a bar": steady(bar(100, 0.5, "Epoch: ", post=lambda s: f", loss={loss_of(s):.2f}"), 0.5),
    "epochs as a bar's unit": steady(bar(100, 0.5, "Training: ", "epoch"), 0.5),
    "epochs without a word": count("[{n}/100] {x:.3f} {x:.4f}\n", 0.08),
    "time stamps": count("2026-03-14 03:07:41,{n:03d} INFO waiting, {x:.2f}\n"),
    "seconds since 1970": count("{n} gradient norm {x:.3f}\n", 1.0, 1_700_000_000),
    "a clock in seconds": count("{n} nll {x:.4f}\n", 1.0),
    "percentages": count("{pct}% done, {x:.2f} of it well\n"),
    "a download": steady(bar(4000, 31.0, "Downloading: ", "B"), 31.0, 20),
    "a download in MB": count("\rmodel.safetensors:  45%|████▌     | {n}.2M/98.0M [00:10<00:12, 4.3MB/s]"),
    "a download without a name": count("\r 45%|████▌     | {n}.2M/98.0M [00:10<00:12, 4.30MB/s]"),
    "pip": count("     ━━━━━━━━━━ {n}.1/670.2 MB 12.3 MB/s eta 0:00:51\n"),
    "map of datasets": steady(bar(9000, 800.0, "Map (num_proc=4): ", " examples"), 800.0, 400),
    "filter of datasets": steady(bar(9000, 80.0, "Filter: ", " examples"), 80.0, 40),
    "tokenizer": steady(bar(900, 8.0, "Running tokenizer on train dataset: "), 8.0, 4),
    "shards of a checkpoint": steady(bar(90, 1.5, "Loading checkpoint shards: "), 1.5),
    "an evaluation with a name": steady(bar(500, 9.0, "Evaluating: "), 9.0),
    "a validation of Lightning": steady(bar(500, 9.0, "Validation DataLoader 0: "), 9.0),
    "a test": steady(bar(500, 9.0, "Testing: ", post=lambda s: f", loss={loss_of(s):.2f}"), 9.0),
    "steps of an evaluation": count("[eval] step {n}/500 loss {x:.3f}\n"),
    "batches of a validation": count("Validation: batch {n} loss {x:.3f}\n"),
    "a bar that was over before": [(1.0, bar(500, 9.0)(500) + "\n"), *count("waiting for a job\n")],
    "process numbers": steady(lambda s: f"started worker pid {4000 + 7 * (s * s % 31)}, load {loss_of(s):.2f}\n", 1.0),
    "ports": count("listening on 127.0.0.1:{n} after {x:.2f} s\n", first=29_500),
    "sizes of memory": count("memory {n} MB, {x:.2f} GB reserved\n"),
    "files": count("wrote shard {n} ({x:.2f} GB)\n"),
    "a heartbeat": count("heartbeat {n} load {x:.2f}\n"),
    "requests": count('10.0.0.1 - "GET /metrics HTTP/1.1" {n} {x:.3f}\n'),
    "samples": count("num_samples={n} nll={x:.3f}\n"),
    "tokens": count("tokens seen {n} loss {x:.3f}\n"),
    "stages of a start": [(4.0 * n, f"Step {n + 1}/4: {stage}\n") for n, stage in enumerate(STAGES)],
    "one line and then silence": [(1.0, plain(100))],
    "the same step again and again": steady(lambda _s: "step 100 loss 2.100\n", 2.0),
    "settings": [(0.5 * n, f"{name} = {n}\n") for n, name in enumerate(("steps", "batch_size", "max_steps", "lr"))],
    "an estimate": count("eta {n} s, {x:.2f} of the day left\n"),
    "evaluations of the Trainer": count(
        "{{'eval_loss': {x:.3f}, 'eval_steps_per_second': 21.3, 'epoch': {n}.0}}\n", 0.2
    ),
    "the summary of the Trainer": [
        (1.0, "{'train_runtime': 51.2, 'train_steps_per_second': 3.2, 'train_loss': 2.1}\n")
    ],
    "losses of the Trainer alone": count("{{'loss': {x:.4f}, 'learning_rate': 5e-05, 'epoch': 0.{n}}}\n"),
    "a table of a profiler": count("aten::mm  {n}  1.23%  {x:.3f}ms  12.3us  {n}\n"),
    "dice": steady(lambda s: f"{DICE.randrange(999)} {DICE.randrange(99)} {loss_of(s):.3f}\n", 2.0),
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_only_looks_like_a_pace_is_none(name):
    assert follow(NOTHING[name]) == NO_STEPS_TOLD


def test_the_tables_are_as_long_as_they_are_promised():
    assert len(PACES) >= 25
    assert len(NOTHING) >= 20


def tell(writes: Iterable[Write], **fields: Any) -> LogPace:
    pace = follow(writes, **fields)
    assert is_known(pace)
    return pace


def test_step_total_loss_and_shape_are_those_of_the_line():
    pace = tell(steady(bar(5000, 3.2, "Training: ", post=lambda s: f", loss={loss_of(s):.2f}"), 3.2), until_s=41.3)
    assert (pace.step, pace.total, pace.loss, pace.unit) == (132, 5000, 2.01, "it")
    assert pace.shape == "Training: #% #/# [#:#<#:#, #it/s, loss=#]"
    assert pace.source is PaceSource.COUNTED
    plainly = tell(steady(plain, 3.2))
    assert (plainly.total, plainly.unit, plainly.shape) == (NOT_APPLICABLE, "step", "step # loss #")


def test_the_losses_of_the_trainer_are_put_beside_its_bar():
    assert tell(trainer(4.0)).loss == pytest.approx(2.0, abs=0.2)


def test_one_line_is_enough_where_it_states_its_rate():
    pace = tell([(1.0, "iter 100: loss 2.15, time 200.00ms, mfu 1.2%\n")])
    assert (pace.rate_hz, pace.source, pace.step) == (5.0, PaceSource.STATED, 100)
    assert not is_known(pace.every_s)


def test_a_pace_grows_old_with_the_log_and_is_said_to():
    young = tell(steady(plain, 4.0, until_s=40), until_s=45)
    old = tell(steady(plain, 4.0, until_s=40), until_s=140)
    assert (young.is_old, old.is_old) == (False, True)
    assert old.age_s == pytest.approx(99.3, abs=0.1)
    assert old.rate_hz == pytest.approx(4.0, rel=0.05)
    assert tell([(1.0, "iter 9: loss 2.1, time 200.00ms\n")], first_s=400.0, until_s=402).is_old


def test_a_step_that_stays_the_same_is_old_however_often_it_is_written():
    stuck = [*steady(plain, 4.0, until_s=30), *((30 + n, plain(120)) for n in range(100))]
    pace = tell(stuck, until_s=120)
    assert pace.is_old
    assert pace.age_s == pytest.approx(89.3, abs=2.1)


def test_lines_that_come_every_minute_are_not_old_after_one():
    assert not tell(steady(plain, 1.0, 60, until_s=600), until_s=650).is_old


def test_the_pace_is_that_of_the_last_half_minute():
    slows = [
        *steady(plain, 8.0, until_s=60),
        *((60 + at, text) for at, text in steady(plain, 2.0, first=480, until_s=40)),
    ]
    assert tell(slows, until_s=100).rate_hz == pytest.approx(2.0, rel=0.05)


def test_a_step_that_cannot_be_dated_well_enough_is_not_counted():
    def other(step: int) -> str:
        return plain(step)

    writes = sorted([*steady(other, 0.7), *steady(lambda _s: "another line\n", 10.0)])
    assert follow(writes, until_s=18) == NO_STEPS_TOLD
    assert tell(writes, until_s=60).rate_hz == pytest.approx(0.7, rel=0.05)


def test_a_loss_that_is_no_number_is_said_and_not_kept_from_before():
    pace = tell(steady(lambda s: f"step {s} loss {'nan' if s > 50 else 2.5}\n", 2.0))
    assert pace.loss == Missing("the log says nan")


def test_a_log_that_is_cut_goes_on():
    follower = LogFollower()
    for second in range(0, 40, 2):
        raw = "".join(plain(n) for n in range(4 * (second - second % 20), 4 * second + 1)).encode()
        follower.feed(LogTail(len(raw), raw[-TAIL_BYTES:], START_S + second, 0.0, round(second * 1e9)))
    pace = follower.tell(1, 2)
    assert is_known(pace)
    assert (pace.rate_hz, pace.step, pace.fd) == (pytest.approx(4.0, rel=0.05), 152, 2)


def test_times_in_whole_seconds_are_not_trusted_to_the_hundredth():
    follower = LogFollower()
    for second in range(0, 14, 2):
        raw = "".join(plain(n) for n in range(2 * second + 1)).encode()
        follower.feed(LogTail(len(raw), raw, float(second), 0.0, round(second * 1e9)))
    assert follower.tell(1, 1) == NO_STEPS_TOLD


def test_no_secret_of_a_line_is_in_its_shape():
    pace = tell(steady(lambda s: f"api_key=AbCdEfGhIjKlMnOp step {s} loss {loss_of(s):.2f}\n", 3.0))
    assert "AbCdEfGh" not in pace.shape
    assert "step # loss #" in pace.shape


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("loss 2.15", 2.15),
        ("train_loss=0.5, val_loss=9", 0.5),
        ("val loss 4.2", NOT_APPLICABLE),
        ("{'eval_loss': 3.1}", NOT_APPLICABLE),
        ("lm loss: 2.300000E+00 |", 2.3),
        ("Loss 6.9012e+00 (6.95e+00)", 6.9012),
        ("'loss': '2.15'", 2.15),
        ("lossless 3", NOT_APPLICABLE),
        ("no loss of data in 3 files", NOT_APPLICABLE),
        ("val_ce_loss=2.1", NOT_APPLICABLE),
        ("val_total_loss: 2.1, total_loss: 1.5", 1.5),
        ("Validation: loss 2.3, acc 0.5", NOT_APPLICABLE),
        ("step 5 | val loss 2.3 | train loss 2.1", 2.1),
        ("[/home/me/dev/train.py:12] loss 2.5", 2.5),
        ("'loss': np.float64(0.5)", 0.5),
        ("iter 4 | loss train: 2.31, val: 2.5", 2.31),
        ("loss/train/total=2.25", 2.25),
        ("avr_loss=0.125", 0.125),
        ("|    loss    | 2.5 |", 2.5),
    ],
)
def test_the_loss_is_that_of_the_training(text, loss):
    assert parse_loss(text) == loss


@given(st.text(max_size=300))
def test_any_text_is_taken(text):
    read = parse_line(text)
    if read is not None and not isinstance(read, NumberLine):
        assert read.step >= 0
        assert not is_known(read.rate_hz) or (read.rate_hz > 0 and math.isfinite(read.rate_hz))


@given(st.lists(st.binary(max_size=400), max_size=6))
def test_any_bytes_are_taken(chunks):
    follower, log = LogFollower(), b""
    for at, chunk in enumerate(chunks):
        log += chunk
        follower.feed(LogTail(len(log), log[-TAIL_BYTES:], START_S + at, 0.0, at * 2_000_000_000))
        follower.tell(1, 1)


COST_MS = 0.3
"""A second, on a machine that does other things; alone it is 0.05 to 0.12 (docs/overhead.md)."""


@pytest.mark.parametrize("name", ["tqdm, postfix", "plain", "Megatron", "own format, without names"])
def test_reading_a_log_costs_less_than_a_millisecond_in_three_seconds(name, monkeypatch):
    costs, plain_feed = [], LogFollower.feed

    def feed(self, tail):
        begun_ns = time.thread_time_ns()
        plain_feed(self, tail)
        self.tell(1, 1)
        costs[-1] += (time.thread_time_ns() - begun_ns) / 1e6

    monkeypatch.setattr(LogFollower, "feed", feed)
    for _ in range(5):
        costs.append(0.0)
        follow(PACES[name][0])
    assert 0 < min(costs) / 50 < COST_MS


def test_a_flood_of_lines_costs_what_a_few_do(monkeypatch):
    read = []
    monkeypatch.setattr("tpmon.probe.host.log_pace.parse_line", read.append)
    for lines in ((f"{chr(97 + n % 26)} line 1\n" for n in range(400)), ("a line 1\n" for _ in range(400))):
        raw = "".join(lines).encode()
        LogFollower().feed(LogTail(len(raw), raw, START_S, 0.0, 0))
    assert len(read) == MOST_LINES + 1
