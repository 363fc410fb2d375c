"""Which events are one step of a training, with a clock that the test holds."""

import itertools
from types import SimpleNamespace

import pytest

from tests.hook_loop import MS
from tpmon.hook.bus import wire

AFTER_UPDATE, UPDATE, BATCH = wire.RULE_DATA_AFTER_UPDATE, wire.RULE_UPDATE, wire.RULE_BATCH
TAKEN_APART = {"steps": 50, "eval_steps": 20, "samples": 800, "eval_samples": 80}
FETCHED, CHECKED = {"steps": 50, "eval_steps": 0}, {"steps": 50, "lookahead": 0, "samples": 200}
TEN, TWENTY = ({"steps": steps, "eval_steps": 0} for steps in (10, 20))

LOOPS = {
    "a plain loop counts each step when the next batch is asked for": [
        ("10(DBU4(~))", {"steps": 9}),
        ("S", {"steps": 10, "rule": AFTER_UPDATE, "phases_ms": [20, 30, 50, 10, 40], "samples": 40, "batch_size": 4}),
        ("", {"eval_steps": 0}),
    ],
    "an accumulation": [("6(4(DB)U)S", {"steps": 6, "batches": 24, "backwards": 24, "samples": 96, "eval_steps": 0})],
    **{
        f"an accumulation of {number}: at first it may be a loop whose optimizer is none of torch's": [
            (f"4({number}(DB)U)S", {"steps": 4, "updates": 4, "rule": AFTER_UPDATE})
        ]
        for number in (63, 65, 128, 300)
    },
    "batches fetched ahead for an accumulation, by the Trainer": [
        ("+50(4(D)4(B)U)S", FETCHED),
        ("-20(D)S", TAKEN_APART),
    ],
    "and one more, by Accelerate": [("+D49(4(D)4(B)U)3(D)S4(B)U", FETCHED), ("-20(D)S", TAKEN_APART)],
    "an evaluation before the first step takes its time": [
        ("-2(d)S+5(DBU)S", {"steps": 5, "eval_steps": 2, "evals_ms": [20, 0, 0]})
    ],
    "one that turns gradients off too late to be seen is told when its loader ended": [
        ("+3(d)S", {"eval_steps": 0}),
        ("5(DBU)S", {"steps": 5, "eval_steps": 3, "evals_ms": [30, 0, 0]}),
    ],
    **{
        f"{number} batches that Lightning checks a run by, and validates, with no question for more": [
            (f"+-{number}(o~)+5(10(DBU)S-o~+)D", CHECKED | {"eval_steps": number + 5, "eval_samples": 4 * number + 20})
        ]
        for number in (1, 2)
    },
    "an evaluation with gradients on that is broken off before the first step": [
        ("+5(D~)3(DBU)S", {"steps": 3, "eval_steps": 5, "lookahead": 0, "samples": 12, "eval_samples": 20})
    ],
    "after an evaluation batches are fetched ahead as before": [
        ("+3(10(4(D)4(B)U)S-5(D)S+)D", {"steps": 30, "eval_steps": 15, "samples": 480, "eval_samples": 60})
    ],
    "an evaluation of as many batches every few steps, broken off, so that no DataLoader ends": [
        ("+5(10(DBU)4(o20(~)))DBU", {"steps": 50, "eval_steps": 20})
    ],
    "evaluations of a loop without an optimizer of torch": [("+3(10(DB)S3(O~)S)", {"eval_steps": 9})],
    "a WGAN under Accelerate: the generator is trained every fifth batch, and at the last": [
        ("+D4(DBU)D2(BU)4(DBU)S2(BU)", {"steps": 10}),
        ("D4(DBU)D2(BU)4(DBU)S2(BU)", {"steps": 20}),
    ],
    "a program that only evaluates, with gradients on": [("+100(D)S", {"steps": 0, "eval_steps": 100})],
    "inference": [("10(D~)S", {"steps": 0, "eval_steps": 10, "rule": BATCH})],
    **{
        f"one batch fetched ahead, by Accelerate, {name}": [("+" + epoch, TEN), (epoch, TWENTY)]
        for name, epoch in {
            "one update": "D9(DBU)SBU",
            "two updates": "D9(D2(BU))S2(BU)",
            "an accumulation": "D9(DBDBDBU)DBDBSBU",
            "an accumulation and two updates": "D9(DBDBD2(BU))DBDBS2(BU)",
        }.items()
    },
    "what is left of an accumulation is updated after the last batch": [
        ("2(2(4(DB)U)2(DB)SU)S", {"steps": 6, "eval_steps": 0})
    ],
    "an update that a scaler skipped ends a step": [
        ("2(DBC4(DBUC))S", {"steps": 10, "skipped": 2, "optimizer_calls": 8})
    ],
    "two optimizers": [("10(D2(BU))S", {"steps": 10, "optimizer_calls": 20})],
    "six optimizers": [("10(D6(BU))S", {"steps": 10, "optimizer_calls": 60})],
    "a step() that calls its parent class": [("10(BUu)", {"steps": 10, "updates": 10, "optimizer_calls": 20})],
    "without a dataloader the update ends a step; the hook came with the first backward": [
        ("10(BU)", {"steps": 10, "rule": UPDATE, "phases_ms": [0, 30 - 3, 50, 10, 0]})
    ],
    "a dataloader that is read once before the loop": [
        ("7(D)S100(BU)", {"steps": 100, "rule": UPDATE, "eval_steps": 7})
    ],
    "an evaluation on a dataloader between updates without one": [
        ("3(40(BU)5(D~)S)", {"steps": 120, "eval_steps": 15})
    ],
    "a batch at which an evaluation was broken off is none of training": [
        ("3(40(BU)5(D~))BU", {"rule": UPDATE, "samples": 0, "eval_samples": 60})
    ],
    "a loop that takes up a dataloader later": [("30(BU)30(DBU)S", {"steps": 60, "rule": AFTER_UPDATE})],
    "batches with a backward, without an optimizer of torch": [
        ("200(DB)S", {"steps": 200, "rule": wire.RULE_BACKWARD}),
        ("10(DBU)S", {"steps": 210, "rule": AFTER_UPDATE}),
    ],
    "an evaluation after half an accumulation keeps its time to itself": [
        ("3(DBU)DBS5(e6(~))S", {"eval_steps": 5, "evals_ms": [5, 30, 0], "phases_ms": [8, 12, 20, 3, 0]}),
        ("", {"steps": 3, "samples": 16, "eval_samples": 20}),
    ],
    "an interrupt within a fetch": [("2(DBU)[BU2(DBU)S", {"steps": 5})],
    "an interrupt within a backward": [("3(BU){7(BU)SB", {"steps": 10, "depth": 0})],
    "an interrupt within the backward of a batch": [("3(DBU)D{BU6(DBU)SB", {"steps": 10, "depth": 0})],
    **{
        f"a validation of {number} batches, as short as what the Trainer fetches ahead": [
            (
                f"+4(5(4(D)4(B)U)S{number}(q20(~))X)D",
                {"steps": 20, "eval_steps": 4 * number, "eval_samples": 16 * number},
            )
        ]
        for number in (1, 2, 3)
    },
    "an accuracy on the training data, broken off, with gradients off in the body alone": [
        ("+5(20(DBU)50(D6(~)))DBU", {"steps": 100, "eval_steps": 250})
    ],
    "gradients of the model within an evaluation": [("3(DBU)6(Db~)S", {"steps": 3, "eval_steps": 6, "backwards": 3})],
    "updates by gradients that a call returned: torch.autograd.grad fills no .grad": [
        ("3(DBU)10(DbUu)5(DUu)S", {"steps": 18, "updates": 18})
    ],
    "the same without a dataloader": [("BU10(bUu)S", {"steps": 11, "updates": 11})],
    **{
        f"{number} optimizers that make their state before {what}, as torch.distributed.checkpoint does": [
            (f"+{number}(U)20({step})S", {"steps": 20})
        ]
        for number in (1, 4, 300)
        for what, step in {"a loop": "DBU", "a loop without a loader": "BU"}.items()
    },
    "of two loaders the one that begins again within a step makes no evaluation": [
        ("+25(3(DOBU)DXOBU)S", {"steps": 100, "eval_steps": 0})
    ],
}
"""By what a loop does: its parts in the letters of ``hook_loop.PARTS``, and what was counted after each."""


@pytest.mark.parametrize("parts", LOOPS.values(), ids=LOOPS)
def test_what_a_loop_is_counted_as(loop, parts):
    for score, counted in parts:
        loop.play(score)
        assert loop.tell(counted) == counted


def test_every_step_has_its_record_and_the_phases_add_up_to_its_time(loop):
    loop.train(5, other_ms=1.5)
    loop.stop()
    records = loop.records()
    assert [record[wire.REC_STEPS] for record in records] == [1, 2, 3, 4, 5]
    for before, after in itertools.pairwise(records):
        spent = sum(after[wire.REC_DATA_NS : wire.REC_OTHER_NS + 1])
        spent -= sum(before[wire.REC_DATA_NS : wire.REC_OTHER_NS + 1])
        assert spent == after[wire.REC_TIME_NS] - before[wire.REC_TIME_NS] == 12.5 * MS


def test_short_steps_share_records_and_none_is_lost(loop):
    for _ in range(400):
        loop.batch(0.01)
        loop.backward(0.01, 0.02)
        loop.update(0.01)
    loop.stop()
    loop.spend(2)
    loop.train(1)
    loop.stop()
    records = loop.records()
    assert 9 <= len(records) <= 12
    assert records[-1][wire.REC_STEPS] == 401


def test_an_update_is_skipped_only_where_the_scaler_is_on(loop):
    for number in range(10):
        loop.batch()
        loop.backward()
        loop.steps.scaler_updated(SimpleNamespace(_enabled=number < 5))
    loop.stop()
    assert (loop.steps.steps, loop.steps.updates, loop.steps.optimizer_calls) == (10, 10, 0)
    # Whether these were skipped, or made by an optimizer that the hook does not see, the reader says.
    assert loop.records()[-1][wire.REC_SKIPPED] == 5


def test_an_optimizer_within_the_backward_is_one_step(loop):
    for with_data in (False, True):
        loop.steps.forget()
        for _ in range(10):
            if with_data:
                loop.batch()
            loop.spend(3)
            assert loop.steps.backward_begins()
            for _ in range(20):
                loop.spend(0.25)
                loop.steps.optimizer_stepped(None, (), {})
            loop.steps.backward_ended(True)
        if with_data:
            loop.stop()
        assert (loop.steps.steps, loop.steps.optimizer_calls, loop.phases_ms()[2]) == (10, 200, 50)


def test_closures_and_nested_backwards_are_parts_of_their_step(loop):
    for _ in range(5):
        loop.batch()
        for _ in range(4):
            loop.spend(3)
            assert loop.steps.backward_begins()
            assert loop.steps.backward_begins()
            loop.spend(5)
            loop.steps.backward_ended(True)
            loop.steps.backward_ended(True)
        loop.update()
    loop.stop()
    assert (loop.steps.steps, loop.steps.backwards, loop.phases_ms()) == (5, 20, [10, 60, 100, 5, 0])
