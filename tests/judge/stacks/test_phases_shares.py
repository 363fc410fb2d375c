"""Shares of stack samples by rank, what they prove, and the phases that stacks of frameworks are in."""

from dataclasses import astuple, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import any_windows
from tests.frames import NOW_NS
from tests.judging import SECOND, read_phases
from tests.loop_stacks import RANK as PID
from tests.phase_stacks import SITE
from tpmon.judge.answers.needs import Need
from tpmon.judge.stacks.classify import classify, read_stack
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import RankPhases, differs, measure_design, share_of
from tpmon.model.stacks import StackCount, StackFrame, StackSlice
from tpmon.probe.spy.text import parse_raw

NAMES = {
    "main": ("main", "/home/usr/train/train.py"),
    "train": ("train", "/home/usr/train/train.py"),
    "module": ("Module._call_impl", f"{SITE}torch/nn/modules/module.py"),
    "next": ("_BaseDataLoaderIter.__next__", f"{SITE}torch/utils/data/dataloader.py"),
    "fit": ("fit", f"{SITE}lightning/pytorch/trainer/trainer.py"),
    "hf": ("_inner_training_loop", f"{SITE}transformers/trainer.py"),
}


def frames_of(text: str) -> tuple[StackFrame, ...]:
    """Build a stack: "main > function file", a file without a slash at its begin is that of a library."""
    stack = []
    for line, one in enumerate(text.split(" > "), 1):
        function, _, file = one.partition(" ")
        named = NAMES.get(function) if not file else None
        stack.append(StackFrame(*(named or (function, file if file.startswith("/") else SITE + file)), line))
    return tuple(stack)


MAIN = frames_of("main")[0]
QUEUE = frames_of("main > next > _get_data torch/utils/data/dataloader.py")
FETCH = frames_of("main > next > fetch torch/utils/data/_utils/fetch.py > Images.decode /home/usr/train/data.py")
FORWARD = frames_of("main > module > Net.forward /home/usr/train/model.py")
DDP = (*frames_of("main > DistributedDataParallel.forward torch/nn/parallel/distributed.py"), *FORWARD)
BACKWARD = frames_of("main > _engine_run_backward torch/autograd/graph.py")
SAVE = frames_of("main > save torch/serialization.py")
RECOMPUTE = (*frames_of("recompute_fn torch/utils/checkpoint.py"), *FORWARD)
LOAD = frames_of("main > load torch/serialization.py")
READ_CSV = frames_of("main > read_csv pandas/io/parsers/readers.py")
TO_CARD = frames_of("main > Module.to torch/nn/modules/module.py")
ITEM = frames_of("main > synchronize torch/cuda/__init__.py")
FREE = frames_of("main > empty_cache torch/cuda/memory.py")
LOG = frames_of("main > Logger.info /usr/lib/python3.11/logging/__init__.py")


def make_slice(
    counts: dict[tuple[StackFrame, ...], int],
    ended_s: float = 0.0,
    seconds: float = 10.0,
    pid: int = PID,
    others: tuple[StackCount, ...] = (),
) -> StackSlice:
    """Build a slice of the main thread that ended ``ended_s`` before now."""
    one = any_windows.make_slice(pid, 0, counts)
    return replace(one, ended_ns=NOW_NS - round(ended_s * SECOND), seconds=seconds, stacks=(*others, *one.stacks))


def read_one(*slices: StackSlice) -> RankPhases:
    """Read the slices of one rank."""
    (phases,) = read_phases(slices, NOW_NS).values()
    return phases


def test_samples_of_all_slices_weigh_alike_and_the_place_is_the_most_frequent_of_the_newest():
    older = make_slice({QUEUE: 90, FORWARD: 60}, 11)
    phases = read_one(older, make_slice({QUEUE: 70, FORWARD: 80}))
    assert phases.samples == 300
    assert phases.ratio(Phase.DATA_WAIT) == pytest.approx(160 / 300)
    assert phases.ratio(Phase.DATA_WAIT, Phase.FORWARD) == pytest.approx(1.0)
    assert phases.parts[DataPart.QUEUE].ratio == pytest.approx(160 / 300)
    assert (phases.span_s, phases.newest_age_s) == (pytest.approx(21.0), 0.0)
    assert phases.share(Phase.SYNC).low == 0.0
    assert 0.0 < phases.share(Phase.SYNC).high < 0.1
    assert phases.where == "forward model.py:3"
    assert read_one(older, make_slice({FETCH: 90})).where == "data wait: decode in data.py:4"


def test_only_the_main_thread_counts_and_of_it_no_torn_samples_without_frames():
    pin = StackCount(PID + 7, "Thread-1", QUEUE, 170)
    assert read_one(make_slice({FORWARD: 170}, others=(pin,))).ratio(Phase.FORWARD) == 1.0
    # In a container a thread may have another number: then its name tells.
    renamed = replace(make_slice({}), stacks=(pin, StackCount(9, "MainThread", FORWARD, 170)))
    assert read_one(renamed).ratio(Phase.FORWARD) == 1.0
    nameless = replace(make_slice({}), stacks=(StackCount(9, "", FORWARD, 170), pin))
    assert read_one(nameless).ratio(Phase.FORWARD) == 1.0
    assert read_one(make_slice({(): 30, FORWARD: 70})).samples == 70
    assert read_phases([make_slice({(): 30})], NOW_NS) == {}


def test_ranks_are_read_apart_and_the_last_minute_only():
    slices = [
        make_slice({QUEUE: 100}, 70),
        make_slice({FORWARD: 100}, 5),
        make_slice({BACKWARD: 100}, 2, pid=4212),
        make_slice({BACKWARD: 100}, 61, pid=4213),
    ]
    ranks = read_phases(slices, NOW_NS)
    assert set(ranks) == {PID, 4212}
    assert ranks[PID].ratio(Phase.FORWARD) == 1.0
    assert ranks[PID].newest_age_s == pytest.approx(5.0)


def test_after_a_change_only_the_newer_slices_count_and_a_handful_of_samples_is_none():
    slices = [make_slice({FORWARD: 160, QUEUE: 10}, age) for age in (55, 44, 33, 22, 11)]
    phases = read_one(*slices, make_slice({FORWARD: 20, QUEUE: 150}))
    assert phases.samples == 170
    assert phases.ratio(Phase.DATA_WAIT) == pytest.approx(150 / 170)
    assert read_one(*slices, make_slice({QUEUE: 1}, seconds=0)).samples == 5 * 170 + 1
    # The kind of a wait may change while its share stays.
    parts = read_one(*(make_slice({FETCH: 170}, age) for age in (44, 33, 22, 11)), make_slice({QUEUE: 170}))
    assert set(parts.parts) == {DataPart.QUEUE}


@pytest.mark.parametrize("into_s", range(11))
def test_a_verdict_can_follow_within_20_s_of_any_moment(into_s):
    """Slices of 10 s with a pause of 1 s; the run changes ``into_s`` seconds after one began."""

    def sample(seconds_after, age):
        waits = round(170 * (0.05 + 0.85 * min(10.0, seconds_after) / 10))
        return make_slice({QUEUE: waits, FORWARD: 170 - waits}, age)

    for late_s in range(21):
        # Ends of slices, in seconds after the change; only those that are over are known.
        ends = [end for end in range(10 - into_s - 55, late_s + 1, 11) if end <= late_s]
        phases = read_one(*(sample(max(0.0, float(end)), late_s - end) for end in ends))
        if phases.ratio(Phase.DATA_WAIT) >= 0.5:
            return
    pytest.fail("the shares did not follow")


def test_a_behaviour_that_comes_and_goes_is_counted_whole():
    ages = (55, 44, 33, 22, 11)
    calm, stall = {FORWARD: 160, QUEUE: 10}, {FORWARD: 60, QUEUE: 110}
    slices = [make_slice(stall if age in (44, 22) else calm, age) for age in ages]
    assert read_one(*slices, make_slice(calm)).samples == 6 * 170
    # Back after 33 s of something else: that was a change, and this is one.
    back = [make_slice(calm if age == 55 else stall, age) for age in ages]
    assert read_one(*back, make_slice(calm)).samples == 170


def test_needs_are_seen_from_one_sample_in_twenty_on_each_with_its_own_share():
    assert Need.LOGGING_IN_STACK in read_one(make_slice({FORWARD: 95, LOG: 5})).needs
    assert Need.LOGGING_IN_STACK not in read_one(make_slice({FORWARD: 96, LOG: 4})).needs
    # A wrapper is there or it is not.
    assert Need.DDP_IN_STACK in read_one(make_slice({QUEUE: 500, DDP: 1})).needs
    # Recomputing is seen on the thread of autograd.
    autograd = StackCount(PID + 9, "Dummy-4", RECOMPUTE, 30)
    assert Need.RECOMPUTE_IN_STACK in read_one(make_slice({BACKWARD: 100}, others=(autograd,))).needs
    assert Need.RECOMPUTE_IN_STACK not in read_one(make_slice({BACKWARD: 100})).needs
    phases = read_one(make_slice({FORWARD: 60, ITEM: 30}), make_slice({FREE: 10}))
    assert phases.ratio(Phase.SYNC) == pytest.approx(0.4)
    assert phases.proven[Need.SYNC_IN_STACK] == pytest.approx(0.3)
    assert phases.proven[Need.ALLOCATOR_IN_STACK] == pytest.approx(0.1)


def test_a_stack_that_does_not_move_is_told_from_one_that_does():
    still = [make_slice({SAVE: 170}, age) for age in (88, 77, 66, 55, 44, 33, 22, 11)]
    phases = read_one(*still, make_slice({SAVE: 170}))
    assert (phases.distinct, phases.unchanged_s) == (1, pytest.approx(98.0))
    moved = read_one(*still, make_slice({SAVE: 169, FORWARD: 1}))
    assert (moved.distinct, moved.unchanged_s, moved.same_place_s) == (2, 0.0, 0.0)
    began = read_one(make_slice({FORWARD: 100, SAVE: 70}, 22), make_slice({SAVE: 170}, 11), make_slice({SAVE: 170}))
    assert began.unchanged_s == pytest.approx(21.0)
    # A wait that wakes up to wait again keeps its place.
    woken = (*QUEUE[:-1], replace(QUEUE[-1], line=1470))
    phases = read_one(make_slice({QUEUE: 170}, 11), make_slice({QUEUE: 169, woken: 1}))
    assert (phases.distinct, phases.unchanged_s, phases.same_place_s) == (2, 0.0, pytest.approx(21.0))


def test_slices_in_any_order_read_alike_and_a_second_time_too():
    slices = [make_slice({FORWARD: 100 - age, QUEUE: 50 + age}, age) for age in (0, 11, 22, 33)]
    first = read_phases(slices, NOW_NS)
    assert read_phases(slices[::-1], NOW_NS) == first
    assert read_phases(slices, NOW_NS) == first
    # An equal slice that is another object is read anew.
    assert read_phases([replace(one) for one in slices], NOW_NS) == first


def test_slices_that_differ_more_than_chance_widen_the_interval():
    even, odd = (
        read_one(*(make_slice({FORWARD: 85 + off, QUEUE: 85 - off}, age) for age, off in offs.items()))
        for offs in ({0: 0, 11: 0, 22: 0, 33: 0}, {0: 12, 11: -12, 22: 12, 33: -12})
    )
    assert odd.shares[Phase.FORWARD].ratio == even.shares[Phase.FORWARD].ratio
    assert odd.design > even.design
    assert odd.shares[Phase.FORWARD].low < even.shares[Phase.FORWARD].low


def test_wilson_interval_by_hand():
    share = share_of(10, 100, design=1.0)
    assert (share.low, share.high) == (pytest.approx(0.0552, abs=1e-4), pytest.approx(0.1744, abs=1e-4))
    assert astuple(share_of(0, 0)) == (0.0, 0.0, 1.0, 0)


def test_two_proportion_test_needs_a_gap_and_samples():
    assert differs({"a": 90, "b": 10}, {"a": 50, "b": 50})
    assert not differs({"a": 9, "b": 1}, {"a": 5, "b": 5})
    assert not differs({"a": 9_000, "b": 1_000}, {"a": 8_000, "b": 2_000 - 600})
    assert not differs({}, {"a": 100})


_KINDS = st.dictionaries(st.sampled_from([QUEUE, FETCH, FORWARD, BACKWARD, SAVE, LOG, ()]), st.integers(0, 400))
_SLICES = st.lists(
    st.builds(make_slice, _KINDS, st.floats(0, 90), st.floats(0, 11), st.sampled_from([PID, 4212])), max_size=12
)


@given(_SLICES)
def test_shares_add_up_and_intervals_hold_them(slices):
    for phases in read_phases(slices, NOW_NS).values():
        assert phases.samples > 0
        assert sum(share.ratio for share in phases.shares.values()) == pytest.approx(1.0)
        assert sum(share.ratio for share in phases.parts.values()) <= 1.0 + 1e-9
        for share in (*phases.shares.values(), *phases.parts.values(), phases.share(*Phase)):
            assert 0.0 <= share.low <= share.ratio <= share.high <= 1.0
        assert phases.unchanged_s <= phases.same_place_s + 1e-9
        assert phases.where


@given(_KINDS, st.integers(2, 9))
def test_more_samples_of_the_same_keep_the_ratios_and_narrow_the_intervals(kinds, factor):
    few = read_phases([make_slice(kinds)], NOW_NS)
    many = read_phases([make_slice({frames: count * factor for frames, count in kinds.items()})], NOW_NS)
    assert set(few) == set(many)
    for pid, phases in few.items():
        for phase, share in phases.shares.items():
            more = many[pid].shares[phase]
            assert more.ratio == pytest.approx(share.ratio)
            assert more.high - more.low <= share.high - share.low + 1e-12


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 300)), max_size=8))
def test_a_design_factor_is_never_below_the_plain_one(slices):
    assert measure_design(slices) >= measure_design([])


def test_waits_at_queues_locks_and_futures_of_python_are_counted():
    pool = frames_of("main > Future.result /usr/lib/python3.11/concurrent/futures/_base.py")
    queue = frames_of(
        "main > Queue.get /usr/lib/python3.11/queue.py > Condition.wait /usr/lib/python3.11/threading.py"
        " > pthread_cond_timedwait /lib/x86_64-linux-gnu/libc.so.6"
    )
    own = frames_of("main > wait /home/usr/train/threading.py")
    phases = read_one(make_slice({pool: 10, queue: 20, own: 30, FORWARD: 40}))
    assert phases.waits_ratio == phases.plain_waits_ratio == pytest.approx(0.3)
    phases = read_one(make_slice({(*QUEUE, *queue[1:]): 60, FORWARD: 40}))
    assert (phases.waits_ratio, phases.plain_waits_ratio) == (pytest.approx(0.6), 0.0)


AGES = (44, 33, 22, 11, 0)


@pytest.mark.parametrize("read", [LOAD, READ_CSV], ids=["torch.load", "pandas"])
@pytest.mark.parametrize("reads", [100, 156], ids=["60 %", "92 %"])
def test_a_loop_that_reads_its_data_itself_waits_for_data(read, reads):
    phases = read_one(*(make_slice({read: reads, FORWARD: 170 - reads}, age) for age in AGES))
    assert phases.ratio(Phase.DATA_WAIT) == pytest.approx(reads / 170)
    assert set(phases.parts) == {DataPart.FETCH}
    assert phases.ratio(Phase.LOAD) == 0
    assert phases.where == "data wait: read train.py:1"


NO_LOOPS = {
    "a start": [{LOAD: 170}, {LOAD: 170}, {LOAD: 100, FORWARD: 70}, {FORWARD: 170}, {FORWARD: 170}],
    "a start, up to now": [{LOAD: 170}] * 4 + [{LOAD: 160, FORWARD: 10}],
    "a set for what comes after training": [{FORWARD: 170}, {FORWARD: 100, LOAD: 70}, *[{LOAD: 170}] * 3],
    "a set in between": [{FORWARD: 170}, {FORWARD: 90, LOAD: 80}, {FORWARD: 60, LOAD: 110}, *[{FORWARD: 170}] * 2],
    "modules that are moved": [{TO_CARD: 100, FORWARD: 70}] * 5,
    "a model that is read and restored": [{LOAD: 40, TO_CARD: 60, FORWARD: 70}] * 5,
}


@pytest.mark.parametrize("counts", NO_LOOPS.values(), ids=NO_LOOPS)
def test_what_is_read_once_or_for_the_model_is_no_wait_for_data(counts):
    phases = read_one(*(make_slice(one, age) for one, age in zip(counts, AGES, strict=True)))
    assert phases.ratio(Phase.DATA_WAIT) == 0
    assert phases.parts == {}
    assert not phases.where.startswith("data wait")


# stacks of frameworks

HF = "transformers/trainer.py"
STRATEGY, APPLY = "lightning/pytorch/strategies/strategy.py", "lightning/fabric/utilities/apply_func.py"
FSDP, MEGATRON = "torch/distributed/fsdp", "megatron/core/dist_checkpointing"


CASES = {
    (Phase.SYNC, None): {
        "HF checks the loss for nan": "main > hf",
        "HF logs the loss": f"main > hf > _maybe_log_save_evaluate {HF}",
        "HF counts the items of a batch": f"main > hf > get_batch_samples {HF}",
        "Lightning shows the loss in its bar": (
            "main > fit > on_train_batch_end lightning/pytorch/callbacks/progress/tqdm_progress.py"
            f" > convert_tensors_to_scalars.<locals>.to_item {APPLY}"
        ),
        "detectron2 gathers its losses": "main > SimpleTrainer.write_metrics detectron2/engine/train_loop.py",
        "FSDP holds back its own launches": (
            f"main > module > _unshard {FSDP}/_runtime_utils.py > Event.synchronize torch/cuda/streams.py"
        ),
    },
    (Phase.LOGGING, None): {
        "HF logs to a service": f"main > hf > _maybe_log_save_evaluate {HF} > log wandb/sdk/wandb_run.py",
        "mlflow sends": "main > log_metrics mlflow/tracking/fluent.py",
    },
    (Phase.DATA_WAIT, None): {
        "HF waits for a batch": (
            f"main > hf > get_batch_samples {HF} > next > _next_data torch/utils/data/dataloader.py"
        ),
        "DGL waits": "main > _PrefetchingIter.__next__ dgl/dataloading/dataloader.py",
    },
    (Phase.FORWARD, None): {
        "torch 2.4 runs a compiled graph": (
            "main > module > _fn torch/_dynamo/eval_frame.py"
            " > CompiledFxGraph.__call__ torch/_inductor/codecache.py > call /tmp/torchinductor_usr/ab/cabc.py"
        ),
        "a logger catches what main raises": "Logger.catch.<locals>.catch_wrapper loguru/_logger.py > main > module",
        "mlflow logs by itself": (
            "safe_patch_function mlflow/utils/autologging_utils/safety.py"
            " > patched_fit mlflow/pytorch/_lightning_autolog.py > fit > module"
        ),
        "training inside a bar of a logger": "update wandb/sdk/wandb_run.py > train > module",
        "Lightning augments on the card": f"main > batch_to_device {STRATEGY} > module",
        "accelerate moves what a layer needs": (
            "main > module > new_forward accelerate/hooks.py > send_to_device accelerate/utils/operations.py"
        ),
    },
    (Phase.COMPILE, None): {"torch compiles": "main > module > load torch/_inductor/codecache.py"},
    (Phase.VALIDATION, None): {
        "YOLO validates": (
            "main > _do_train ultralytics/engine/trainer.py"
            " > BaseValidator.__call__ ultralytics/engine/validator.py > module"
        ),
        "mmengine validates": "main > BaseModel.val_step mmengine/model/base_model/base_model.py > module",
        "a script of diffusers validates": "main > log_validation /home/usr/train/train_text_to_image.py > module",
    },
    (Phase.DATA_WAIT, DataPart.COPY): {
        "Lightning copies a batch": f"main > batch_to_device {STRATEGY} > move_data_to_device {APPLY}",
        "accelerate copies a batch": (
            "main > __iter__ accelerate/data_loader.py > send_to_device accelerate/utils/operations.py"
        ),
    },
    (Phase.COMMS, None): {
        "FSDP gathers": (
            f"main > module > _unshard {FSDP}/_runtime_utils.py > FlatParamHandle.unshard {FSDP}/_flat_param.py"
        )
    },
    (Phase.CHECKPOINT, None): {
        "Megatron waits for a save aside": (
            "main > maybe_finalize_async_save megatron/training/async_utils.py"
            f" > close {MEGATRON}/strategies/async_utils.py > join /env/lib/python3.11/multiprocessing/process.py"
        ),
        "Megatron writes a save aside": f"write_preloaded_data {MEGATRON}/strategies/filesystem_async.py",
    },
    (Phase.LOAD, None): {
        "NeMo loads with Megatron": f"main > load {MEGATRON}/serialization.py > load {MEGATRON}/strategies/torch.py"
    },
    (Phase.BACKWARD, None): {"Megatron goes back": "main > backward_step megatron/core/pipeline_parallel/schedules.py"},
    (Phase.DATA_WAIT, DataPart.FETCH): {
        "a loader of tokens of one's own": (
            "main > tokenizing_distributed_data_loader_with_state /home/usr/nano/dataloader.py"
        )
    },
    (Phase.OTHER, None): {"who builds a loader waits for none": "main > train_dataloader /home/usr/nano/data.py"},
}
"""Stacks of frameworks by name, by the phase and the part that they are in."""


@pytest.mark.parametrize(
    ("text", "inside"),
    [pytest.param(text, inside, id=name) for inside, stacks in CASES.items() for name, text in stacks.items()],
)
def test_a_stack_of_a_framework_is_in_its_phase(text, inside):
    assert classify(frames_of(text)) == inside


def test_a_line_of_a_library_that_waits_proves_a_synchronise_and_is_named_by_the_users_line():
    reading = read_stack(frames_of("main > hf"))
    assert reading.needs == {Need.NAN_CHECK_IN_STACK}
    assert "train.py:1" in reading.where
    assert read_stack(frames_of(f"main > Trainer._maybe_log_save_evaluate {HF}")).needs == {Need.SYNC_IN_STACK}


# real stacks

FILES = sorted((Path(__file__).parents[2] / "data").glob("stacks_*.tsv"))
SAMPLED = 100


def _read(path: Path) -> list[tuple[str, str, StackCount]]:
    """Return label, words and stack of every line."""
    rows = []
    for line in path.read_text().splitlines():
        label, words, raw = line.split("\t")
        (stack,) = parse_raw(raw.encode(), SAMPLED).stacks
        rows.append((label, words, stack))
    return rows


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_stacks_are_read_as_labelled(path):
    for label, words, stack in _read(path):
        phase, part = classify(stack.frames)
        assert "/".join(one.value for one in (phase, part) if one is not None) == label, words
        assert read_stack(stack.frames).where == words


def test_the_captured_programs_show_every_phase_that_has_frames_on_a_cpu():
    labels = {label for path in FILES for label, _, _ in _read(path)}
    phases = {label.partition("/")[0] for label in labels}
    assert phases == {phase.value for phase in Phase} - {Phase.SYNC.value}
    parts = {label.partition("/")[2] for label in labels if "/" in label}
    assert parts >= {part.value for part in DataPart} - {DataPart.SAMPLER.value}
