"""Lines of logs as programs write them: which count the steps of a training, and which count something else."""

from __future__ import annotations

import pytest

from tests.log_tails import Write, follow, loss_of, steady
from tpmon.model.host import LogPace
from tpmon.model.known import Missing, is_known
from tpmon.probe.host.log_pace import NO_STEPS_TOLD


def write(template: str, hz: float, every: int = 1, until_s: float = 60.0) -> list[Write]:
    """Return a template with the step as ``n`` and a figure that varies as ``x``."""
    lines = steady(lambda step: template.format(n=step, x=loss_of(step), rest=step % 7), hz, every, until_s=until_s)
    return list(lines)


def read(template: str, hz: float, every: int = 1, until_s: float = 60.0) -> LogPace:
    pace = follow(write(template, hz, every, until_s), until_s=until_s)
    assert is_known(pace), pace
    return pace


PACED: dict[str, tuple[str, float, int]] = {
    "a bar of each rank": (
        (
            "[rank0]: Epoch 0:   3%|▎   | {n}/4000 [00:59<29:18,  2.20it/s]\n"
            "[rank1]: Epoch 0:   3%|▎   | {n}/4000 [00:59<29:18,  2.20it/s]\n"
        ),
        2.2,
        1,
    ),
    "an epoch and its batches in brackets": (
        (
            "[2026-03-14 03:07:41 net](main.py 205): INFO Train: [12/300][{n}/1251]\teta 0:06:12 lr 0.0006\t"
            "time 0.3100 (0.3211)\tloss {x:.4f} (3.2)\tmem 12345MB\n"
        ),
        3.1,
        10,
    ),
    "an epoch in brackets, then a blank": (
        "Epoch: [3]  [{n:4d}/5004]  eta: 0:20:11  lr: 0.0001  loss: {x:.4f} (6.9)  time: 0.2500  data: 0.0003\n",
        4.0,
        20,
    ),
    "a total and an estimate": (
        (
            "I20260314 03:07:41 123456 run helpers.py:102] Training  [{n:6d}/125000]  eta: 1 day, 10:02:11"
            "  total_loss: {x:.4f} (12.2)  time: 0.5000  data: 0.0003\n"
        ),
        2.0,
        10,
    ),
    "an estimate beside a loss": (
        "\r {n:3d}/1875 [==>.......] - ETA: 8s - loss: {x:.4f} - accuracy: 0.8{rest}",
        4.0,
        1,
    ),
    "begun by a carriage return and not ended": ("\rTraining... ({n}/3000) loss {x:.3f}", 5.0, 1),
    "a counter that is not ended": ("\rEpoch 1/3, Step {n}/2000, Loss: {x:.4f}", 6.0, 1),
    "figures glued to their names": ("<{n}> nll:{x:.3f} gn:0.{rest}1\n", 2.2, 4),
    "a step glued to its name": ("E:1 B:{n} L:{x:.4f}\n", 4.0, 20),
    "more lines than are read each": ("{n:06d} | {x:.4f} | ok\n", 37.0, 1),
    "steps beside parts of them": (
        "Epoch 1 | iter {n}0 step {n} | loss train: {x:.3f}, iter time: 125.00 ms\n",
        2.0,
        1,
    ),
    "figures between commas": ("{n},{x:.4f},0.0003,512\n", 4.0, 4),
    "a time of each batch beside the number": (
        "| epoch   1 | {n:5d}/ 2983 batches | lr 20.00 | ms/batch 125.00 | loss {x:7.4f} | ppl  2040.10\n",
        8.0,
        40,
    ),
    "a file in a folder of tests": ("[/home/me/test/train.py:12] step {n} loss {x:.4f}\n", 3.0, 1),
    "a count of iterations": ("niter={n} obj={x:.4f}\n", 3.0, 1),
    "a count of steps": ("numsteps={n} reward={x:.4f}\n", 3.0, 1),
    "a range of steps": (
        (
            "[node3] 2026-03-14 03:07:41,123 (trainer:756) INFO: 3epoch:train:{n}-{n}batch: iter_time=6.2e-05, "
            "forward_time=0.145, loss_ctc=69.8{rest}, loss={x:.3f}, optim0_lr0=2.4e-06, train_time=0.562\n"
        ),
        5.0,
        50,
    ),
    "an epoch and a batch that look like a total": (
        "2026-03-14 03:07:41,123 DEBUG TRAIN Batch 4/{n} loss {x:.6f} loss_ctc 16.67 lr 0.0003 rank 0\n",
        2.0,
        10,
    ),
    "a table": (
        (
            "| rollout/              |          |\n|    ep_rew_mean        | 2.{rest}1     |\n| time/    |          |\n"
            "|    fps                | 12       |\n|    total_timesteps    | {n}      |\n| train/   |          |\n"
            + "".join(f"|    figure_{name:<10} | {{x:.3f}}  |\n" for name in "abcdefghij")
        ),
        12.0,
        30,
    ),
    "a block under its step": (
        "[epoch=1][batch={n}/4800]:\n" + "".join(f"\t Train metric/{name}: {{x:.4f}}\n" for name in "abcdefghijkl"),
        2.0,
        1,
    ),
    "a pair in brackets behind the rate": (
        "I0314 03:07:41.123 1401 local.py:41] Setting notes: 4.0 steps/s, 5.3% ({n}/9000), ETA: 1h12m\n",
        4.0,
        40,
    ),
    "a rate without a unit": ("\rTraining |███▌     | {n}/900 [51%] in 9s (5.0/s, eta: 87s)", 5.0, 1),
    "a bar of episodes": ("\rEpisode:  31%|███       | {n}/900 [01:33<03:27,  3.00it/s, reward=3.{rest}]", 3.0, 1),
    "a loss of nan": ("[{n}/5000] train_loss: nan lr: 0.0001\n", 4.0, 4),
}


@pytest.mark.parametrize("name", PACED)
def test_a_line_of_a_training_gives_its_pace(name):
    template, hz, every = PACED[name]
    assert read(template, hz, every).rate_hz == pytest.approx(hz, rel=0.05)


def test_batches_of_an_epoch_are_no_samples_though_their_percentage_stands_behind():
    batches = "Train: 0 [{n:>4d}/1251 (  4%)]  Loss: {x:#.3g} (2.1)  Time: 0.321s, 3190.03/s  LR: 1.000e-05\n"
    pace = read(batches, 3.0, 50, until_s=90)
    assert (pace.unit, pace.total) == ("step", 1251)
    assert read("Train Epoch: 1 [{n}/60000 (4%)]\tLoss: {x:.6f}\n", 64.0, 64).unit == "sample"


@pytest.mark.parametrize(
    "template", ["loss: {x:.7f}  [{n:>5d}/60000]\n", "| epoch 010  {n} / 8223 loss={x:.7f} (1.50)\n"]
)
def test_the_loss_beside_a_number_without_a_name_is_that_of_the_same_line(template):
    pace = read(template, 2.5, 10)
    assert pace.loss == pytest.approx(loss_of(pace.step), abs=1e-5)


def test_a_loss_that_is_nan_is_said_of_own_formats_too():
    assert read(*PACED["a loss of nan"]).loss == Missing("the log says nan")


def test_a_loss_that_is_printed_as_a_tensor_is_read():
    pace = read("step {n} loss tensor({x:.4f}, device='cuda:0', grad_fn=<NllLossBackward0>)\n", 4.0, 4)
    assert pace.loss == pytest.approx(loss_of(pace.step), abs=0.001)


def test_a_count_goes_on_over_an_epoch_whose_last_line_comes_early():
    lines = steady(lambda step: f"[{min(step % 100 * 10 + 10, 997)}/997] nll {loss_of(step):.3f}\n", 1.5, until_s=150)
    pace = follow(lines, until_s=150)
    assert is_known(pace)
    assert pace.rate_hz == pytest.approx(15.0, rel=0.05)


@pytest.mark.parametrize("line", ["epoch {e} batch {n}/{all} loss {x:.3f}\n", "[{e}, {n:5d}] loss: {x:.3f}\n"])
@pytest.mark.parametrize(("hz", "batches"), [(10, 19), (10, 21), (10, 31), (30, 28), (30, 57), (30, 93), (10, 60)])
def test_epochs_that_are_shorter_than_a_reading_give_no_wrong_pace(line, hz, batches):
    def write_batch(step: int) -> str:
        return line.format(e=step // batches, n=step % batches, all=batches, x=loss_of(step))

    pace = follow(steady(write_batch, hz, until_s=95), until_s=93)
    assert is_known(pace) or batches < 4 * hz
    assert not is_known(pace) or pace.rate_hz == pytest.approx(hz, rel=0.05)


def test_a_number_that_is_padded_stays_the_same_number():
    lines = steady(lambda step: f"[{step // 180}, {step % 180:5d}] nll: {loss_of(step):.3f}\n", 30, until_s=95)
    pace = follow(lines, until_s=93)
    assert is_known(pace)
    assert pace.rate_hz == pytest.approx(30, rel=0.05)


WANDER = (60, 61, 62, 63, 62, 62, 64, 66, 65, 63)
OTHER: dict[str, tuple[str, float]] = {
    "a template of chats for the data": (
        "\rApplying template to train dataset:  3%|▎ | {n}/52000 [00:01<00:12, 2100.00 examples/s]",
        2100.0,
    ),
    "a cut of the data": ("\rTruncating train set:  3%|▎ | {n}/52000 [00:01<00:12, 21.00it/s]", 21.0),
    "a walk over the data": ("\rIterating over dataset:  3%|▎ | {n}/5200 [00:01<00:12, 21.00it/s]", 21.0),
    "seconds an iteration of an inference, behind a date": (
        "[03/14 03:07:41 evaluator]: Inference done {n}/5000. Dataloading: 0.0012 s/iter. Total: 0.0757 s/iter.\n",
        13.0,
    ),
    "figures of memory": ("rss={n} vms=4123456 pct=0.{rest}1\n", 650.0),
    "objects": ("heap_objects={n} gc_time=0.{rest}\n", 17.0),
    "descriptors": ("open fds: {n}, sockets: {rest}, cpu {x:.1f}\n", 1.3),
    "packets": ("64 bytes from a host: icmp_seq={n} ttl=64 time={x:.2f} ms\n", 2.2),
    "percentages after a blank": ("GPU 0: util {n} %, fan {x:.1f}\n", 0.3),
    "so many of something": ("read {n} lines, {x:.2f} s\n", 1300.0),
    "so many CPUs": ("(autoscaler) Resized to {n} CPUs, {x:.1f} GPUs.\n", 0.7),
    "an identity": ("JobId={n} StepId=0.{rest} cpu={x:.2f}\n", 0.7),
    "a wait for others": ("Waiting for peers ... {n}/64 joined, {x:.1f} s\n", 1.4),
    "a batch of a validation": ("batch {n}/400 [validation] loss {x:.3f}\n", 3.0),
    **{
        f"{work} with a figure": (f"{work} {{n}}/900 {{x:.2f}} s\n", 2.3)
        for work in (
            "Processing batch",
            "Tokenized batch",
            "Embedding batch",
            "Loading batch",
            "warmup iteration",
            "[bench] iteration",
            "Calibration batch",
            "Denoising step",
            "decode step",
            "Predict step",
            "Scoring batch",
            "Rollout step",
            "Inserted batch",
            "Feature extraction batch",
        )
    },
    "a counter of its split": ("step={n} split=val loss={x:.3f}\n", 2.3),
    "a counter of its split in JSON": ('{{"step": {n}, "split": "eval", "loss": {x:.3f}}}\n', 2.3),
    "batches with figures of a validation": ("Epoch: [3][{n}/196] Val Loss {x:.4f} Val Acc 0.{rest}\n", 5.0),
    "steps with figures of a validation": ("step {n}/400 val_loss {x:.3f} val_acc 0.{rest}\n", 3.0),
    "batches of an encoding": ("\rBatches:  31%|███       | {n}/900 [00:13<00:27, 12.00it/s]", 12.0),
    "a prediction of Keras": ("\r{n}/900 ━━━━━━━━ 31s 200ms/step", 5.0),
    "a watchdog": ("watchdog iteration {n}: all ranks answer, {x:.2f} s\n", 1.7),
    "health": ("iteration {n}: 8 ranks healthy, {x:.2f} s\n", 1.7),
    "a clustering": ("Iteration {n} ({x:.2f} s, search 1.2 s): objective=2.1e+06 imbalance=1.{rest}\n", 1.7),
    "work on what a step left": ("[profiler] exported trace of step {n} ({x:.1f} MB)\n", 1.7),
    "a solver": ("CG iteration {n}: {x:.4f}\n", 4.0),
    "a decoding": ("[decode.py:712] batch {n}/?, cuts processed until now is 37{rest}, {x:.2f} s\n", 1.7),
    "a latency": ("iter {n}: latency {x:.2f} ms, throughput 12.{rest} tok/s\n", 3.0),
    "a scored batch": ("scored batch {n}/900 mrr {x:.4f}\n", 3.0),
    "a database": ("INFO batch {n} committed (931 rows, {x:.2f} s)\n", 2.3),
    "an event in JSON": ('{{"event": "preprocess", "batch": {n}, "seconds": {x:.3f}}}\n', 1.7),
    "frames a second": ("fps step: {n} fps total: 27487 epoch: 1{rest}/5000 reward {x:.2f}\n", 700.0),
    **{
        f"{words}, a number that has another name": (f"{words} {{n}} {{x:.3f}} s\n", 2.3)
        for words in ("opCount", "prefetch put", "generated", "Simulating trajectory", "restart", "n_past =")
    },
    "an early stopping": ("EarlyStopping counter: {n} out of 100, best {x:.4f}\n", 0.7),
    "a queue": ("queue depth {n} lag {x:.2f}\n", 1.3),
    "layers": ("layer {n} sparsity {x:.4f}\n", 0.9),
    "tasks": ("26/03/14 03:07:41 INFO Finished task {n}.0 in stage 3.0 on a host ({n}/2000)\n", 2.2),
    "trials": ("Number of trials: {n}/100 mem 12.{rest}/128.0 GiB\n", 1.3),
    "a loss of the dev set": ("dev batch {n} loss {x:.3f}\n", 2.3),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_line_of_something_else_gives_none(name):
    template, hz = OTHER[name]
    assert follow(write(template, hz, max(1, round(hz / 2)))) == NO_STEPS_TOLD


@pytest.mark.parametrize("until_s", range(12, 200, 10))
def test_what_rises_by_chance_and_falls_again_is_no_step(until_s):
    lines = steady(lambda at: f"value {WANDER[at % 10]} noise {loss_of(at):.3f}\n", 0.4, until_s=until_s)
    assert follow(lines, until_s=until_s) == NO_STEPS_TOLD
