"""Which phase a stack is in: the innermost meaningful frame, and the regions that keep their insides."""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.phase_stacks import FRAMES, SITE, stack
from tpmon.judge.answers.needs import Need
from tpmon.judge.knowledge import TableError
from tpmon.judge.stacks.classify import classify, is_library, mark_frame, read_stack
from tpmon.judge.stacks.phases import GIVES_WAY, DataPart, FrameKind, Phase, make_rules, read_frame_rules
from tpmon.model.stacks import StackFrame

TABLE = [
    # Plain loops
    ("module main next next_data get_data try_get queue_get", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module main next next_data get_data try_get queue_get rebuild", Phase.DATA_WAIT, DataPart.COPY),
    ("module main next next_data fetch listcomp decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch_iter decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch_old decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch timed item decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch_iter user_collate", Phase.DATA_WAIT, DataPart.COLLATE),
    ("module main next next_data fetch default_collate", Phase.DATA_WAIT, DataPart.COLLATE),
    ("module main next next_data fetch user_collate", Phase.DATA_WAIT, DataPart.COLLATE),
    ("module main next next_data fetch collator", Phase.DATA_WAIT, DataPart.COLLATE),
    ("module main next next_data pin", Phase.DATA_WAIT, DataPart.COPY),
    ("module main next next_data next_index sampler", Phase.DATA_WAIT, DataPart.SAMPLER),
    ("module main next next_data next_index any_iter", Phase.DATA_WAIT, DataPart.SAMPLER),
    ("module main loader_init any_iter main", Phase.DATA_WAIT, DataPart.SAMPLER),
    ("module main loader_init main", Phase.DATA_WAIT, DataPart.START),
    ("module main loader_init fetcher_init any_iter", Phase.DATA_WAIT, DataPart.START),
    ("module main draw_anew", Phase.DATA_WAIT, DataPart.SAMPLER),
    ("module main loader_init", Phase.DATA_WAIT, DataPart.START),
    ("module main next next_data shutdown", Phase.DATA_WAIT, DataPart.START),
    ("module main stateful fetch item decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main get_batch", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main call net call linear", Phase.FORWARD, None),
    ("module main functional", Phase.FORWARD, None),
    ("module main backward engine", Phase.BACKWARD, None),
    ("module main wrapper adam", Phase.OPTIMIZER, None),
    ("module main wrapper my_opt", Phase.OPTIMIZER, None),
    ("module main wrapper my_opt functional", Phase.OPTIMIZER, None),
    ("module main schedule", Phase.OPTIMIZER, None),
    ("module main clip", Phase.OPTIMIZER, None),
    ("module main scaler wrapper adam", Phase.OPTIMIZER, None),
    ("module main scaler scaler_item", Phase.SYNC, None),
    ("module main synchronize", Phase.SYNC, None),
    ("module main call net event", Phase.SYNC, None),
    ("module main empty_cache", Phase.SYNC, None),
    ("module main format", Phase.SYNC, None),
    ("module main", Phase.OTHER, None),
    ("module main call sgd_module call net", Phase.FORWARD, None),
    # A data set may do anything: it stays the wait for data, but for waiting on other ranks.
    ("module main next next_data fetch item decode load", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch item decode call linear", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch item decode save", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch item decode logging", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch item decode c10d barrier", Phase.COMMS, None),
    # Ranks
    ("module main c10d all_reduce", Phase.COMMS, None),
    ("module main backward engine c10d all_reduce", Phase.COMMS, None),
    ("module main init_group rendezvous", Phase.COMMS, None),
    ("module main call ddp ddp_sync", Phase.COMMS, None),
    ("module main call ddp call net", Phase.FORWARD, None),
    ("module main call unshard", Phase.COMMS, None),
    ("module main dcp_save c10d all_reduce", Phase.CHECKPOINT, None),
    ("module main dcp_load c10d all_reduce", Phase.LOAD, None),
    # FSDP2 of torch 2.2 to 2.5
    ("module main call fsdp2_hook fsdp2_wait", Phase.COMMS, None),
    ("module main backward engine fsdp2_reduce c10d all_reduce", Phase.COMMS, None),
    ("module main call fsdp2_hook call net", Phase.FORWARD, None),
    # Loaders with threads, processes or actors of their own
    ("module main dali dali_outputs", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module main ffcv thread_queue", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module main ray_data", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module main node_loader node node_prefetch thread_queue", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module main node_loader node decode", Phase.DATA_WAIT, None),
    # Files
    ("module main save", Phase.CHECKPOINT, None),
    ("module main save_checkpoint", Phase.CHECKPOINT, None),
    ("module main load", Phase.LOAD, DataPart.READ),
    ("module main from_pretrained load", Phase.LOAD, None),
    ("module main load_checkpoint load", Phase.LOAD, None),
    ("module main load_dataset", Phase.LOAD, DataPart.READ),
    ("module main users_datasets", Phase.OTHER, None),
    ("module main to", Phase.LOAD, None),
    ("module main call offload to", Phase.FORWARD, None),
    ("module main step to", Phase.FORWARD, None),
    ("module main hub_download", Phase.LOAD, DataPart.READ),
    ("module main hub_upload", Phase.OTHER, None),
    # Validation outranks what it waits for; training inside it is training.
    ("module main validate next next_data get_data", Phase.VALIDATION, None),
    ("module main validate call net", Phase.VALIDATION, None),
    ("module main evaluate c10d all_reduce", Phase.VALIDATION, None),
    ("module main evaluate train call net", Phase.FORWARD, None),
    ("module main evaluate backward engine", Phase.BACKWARD, None),
    ("module main validate save", Phase.CHECKPOINT, None),
    ("module main pydantic_validate", Phase.OTHER, None),
    ("module main call net validate_input", Phase.FORWARD, None),
    ("module main call net validate", Phase.FORWARD, None),
    # Logging
    ("module main logging", Phase.LOGGING, None),
    ("module main call net logging", Phase.LOGGING, None),
    ("module main logging format", Phase.LOGGING, None),
    ("module main tqdm_iter next next_data get_data", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module main tqdm_iter tqdm", Phase.LOGGING, None),
    ("module main wandb", Phase.LOGGING, None),
    ("module main call metric call linear", Phase.LOGGING, None),
    # Imports: a library's own code at import is import, a user's is what it is.
    ("module import torch_module", Phase.IMPORT, None),
    ("module main call net import dynamo_module", Phase.IMPORT, None),
    ("module import torch_module decorate", Phase.IMPORT, None),
    ("module import torch_module convert", Phase.IMPORT, None),
    ("import module main call net", Phase.FORWARD, None),
    ("import module next next_data get_data", Phase.DATA_WAIT, DataPart.QUEUE),
    # The compiler compiles once; its wrappers run in every step.
    ("module main call compile_wrapper call net", Phase.FORWARD, None),
    ("module main compile_wrapper", Phase.FORWARD, None),
    ("module main call compile_wrapper convert codecache", Phase.COMPILE, None),
    ("module main call compile_wrapper convert import torch_module", Phase.COMPILE, None),
    ("module main backward engine codecache", Phase.COMPILE, None),
    ("module main call net autotune", Phase.COMPILE, None),
    # Activation checkpointing
    ("module main call net checkpoint call linear", Phase.FORWARD, None),
    ("module main backward engine unpack call net", Phase.BACKWARD, None),
    # Prompts; a debugger or a notebook around the program is none.
    ("module main cmdloop", Phase.INPUT, None),
    ("module main next next_data fetch item decode cmdloop", Phase.INPUT, None),
    ("pdb_main bdb_run module main call net", Phase.FORWARD, None),
    ("ipython_run module main backward engine", Phase.BACKWARD, None),
    ("prompt", Phase.INPUT, None),
    # Lightning runs the step inside the optimizer's
    ("main pl_run wrapper pl_closure pl_step step", Phase.FORWARD, None),
    ("main pl_run wrapper pl_closure pl_step step call net", Phase.FORWARD, None),
    ("main pl_run wrapper pl_closure backward engine", Phase.BACKWARD, None),
    ("main pl_run wrapper adam", Phase.OPTIMIZER, None),
    ("main pl_run pl_fetch next next_data get_data", Phase.DATA_WAIT, DataPart.QUEUE),
    ("main pl_run pl_eval pl_fetch next next_data get_data", Phase.VALIDATION, None),
    ("main pl_run pl_eval pl_save save", Phase.CHECKPOINT, None),
    # Hugging Face
    ("main hf_inner hf_batches acc_iter next next_data fetch item decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("main hf_inner hf_batches acc_iter c10d all_reduce", Phase.COMMS, None),
    ("main hf_inner hf_step hf_prepare", Phase.DATA_WAIT, DataPart.COPY),
    ("main hf_inner hf_step call linear", Phase.FORWARD, None),
    ("main hf_inner hf_step acc_backward backward engine", Phase.BACKWARD, None),
    ("main hf_inner hf_log", Phase.SYNC, None),
    ("main hf_inner hf_log hf_evaluate next next_data get_data", Phase.VALIDATION, None),
    ("main hf_inner hf_log hf_save save", Phase.CHECKPOINT, None),
    ("evaluate hf_inner hf_step call linear", Phase.FORWARD, None),
    ("module main evaluate acc_gather", Phase.VALIDATION, None),
    ("module main acc_gather", Phase.COMMS, None),
    # DeepSpeed and timm, from their sources
    ("module main ds_backward backward engine", Phase.BACKWARD, None),
    ("module main ds_step adam", Phase.OPTIMIZER, None),
    ("module main ds_step ds_comm", Phase.COMMS, None),
    ("module main call ds_gather", Phase.COMMS, None),
    ("module train timm_iter next next_data get_data", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module train timm_iter", Phase.DATA_WAIT, DataPart.COPY),
    ("module main timm_saver save", Phase.CHECKPOINT, None),
]


@pytest.mark.parametrize("below", ["", " decode"])
def test_what_a_map_style_fetcher_calls_beside_items_is_the_collate_function(below):
    names = f"module main next next_data fetch pad{below}"
    assert classify(stack(names)) == (Phase.DATA_WAIT, DataPart.COLLATE)
    # Python 3.10 does not say which fetcher it is, and a generator may have any name.
    assert classify(stack(names.replace("fetch", "fetch_old"))) == (Phase.DATA_WAIT, DataPart.FETCH)


@pytest.mark.parametrize(("names", "phase", "part"), TABLE, ids=[row[0].replace(" ", ">") for row in TABLE])
def test_the_innermost_meaningful_frame_wins(names, phase, part):
    assert classify(stack(names)) == (phase, part)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("module main call net call linear", "forward net.py:4"),
        ("module main next next_data fetch item decode", "data wait: decode in data.py:7"),
        ("module main next next_data get_data try_get", "data wait: queue train.py:2"),
        ("module main backward engine c10d all_reduce", "all_reduce (backward) train.py:2"),
        ("module main call ddp ddp_sync", "broadcast of buffers (ddp forward) train.py:2"),
        ("module main c10d barrier", "barrier train.py:2"),
        ("module main synchronize", "sync: synchronize train.py:2"),
        ("module main wandb", "logging: wandb train.py:2"),
        ("module import torch_module", "import: torch train.py:1"),
        ("module main backward engine unpack call net", "backward: recompute net.py:7"),
        ("module main validate call net", "validation net.py:5"),
        ("module main", "main train.py:2"),
        ("call linear", "forward"),
        ("queue_get", "get in queues.py:1"),
    ],
)
def test_words_name_the_phase_and_the_users_own_line(names, words):
    assert read_stack(stack(names)).where == words


def test_python_3_10_names_without_classes_are_read_alike():
    for names, phase, part in TABLE:
        plain = tuple(replace(frame, function=frame.function.rpartition(".")[2]) for frame in stack(names))
        assert classify(plain) == (phase, part), names


RULES = [rule for rules in read_frame_rules().frames.values() for rule in rules]
HOMES = sorted({rule.path.split("/")[0] for rule in RULES if rule.installed})


@pytest.mark.parametrize("home", [name for name in HOMES if "." not in name])
@pytest.mark.parametrize("place", ["/home/{}/venv/lib/python3.11/site-packages/", "/{}/lib/python3.12/dist-packages/"])
def test_a_folder_with_the_name_of_a_library_does_not_make_all_that_is_in_it_that_library(home, place):
    """A home, a project or an environment may be named rich, aim, logging or datasets."""
    for names, phase in (
        ("module main call linear", Phase.FORWARD),
        ("module main backward engine", Phase.BACKWARD),
        ("module main wrapper adam", Phase.OPTIMIZER),
        ("module main next next_data get_data", Phase.DATA_WAIT),
    ):
        frames = tuple(replace(one, file=one.file.replace(SITE, place.format(home))) for one in stack(names))
        assert classify(frames)[0] is phase, (place, names)
    assert mark_frame("Queue.get", f"/home/{home}/lib/python3.11/queue.py") is None


def test_libraries_are_known_in_every_place_where_they_are_installed_and_are_no_user_code():
    for place in (
        SITE,
        "/home/rich/venv/lib/python3.11/site-packages/",
        "/opt/conda/lib/python3.10/site-packages/",
        "/usr/local/lib64/python3.9/site-packages/",
        "/venv/lib/python3.13t/site-packages/",
        "/venv/lib/python3.11/site-packages/tqdm-4.66-py3.11.egg/",
    ):
        assert classify((StackFrame("tqdm.update", place + "tqdm/std.py", 9),)) == (Phase.LOGGING, None), place
    for file in ("/usr/lib/python3.11/logging/__init__.py", "/opt/lib/python311.zip/logging/__init__.py"):
        assert classify((StackFrame("StreamHandler.emit", file, 9),)) == (Phase.LOGGING, None), file
    for file in (
        "/home/usr/train/.venv/lib/python3.12/site-packages/torch/nn/functional.py",
        "/usr/lib/python3.11/selectors.py",
        "/opt/conda/lib/python3.10/threading.py",
        "/usr/lib64/python3.9/socket.py",
        "<frozen importlib._bootstrap>",
        "<string>",
        "/tmp/torchinductor_usr/ab/cab.py",
        "/opt/venv/bin/torchrun",
        "/home/usr/hook.zip/tpmon/hook/patches.py",
    ):
        assert is_library(file), file
    for file in ("/home/usr/train/train.py", "/workspace/lib/data.py", "train.py", "/srv/python/run.py", "<stdin>"):
        assert not is_library(file), file


def test_folders_of_a_torch_built_from_source_are_known_as_well():
    for names, phase in (
        ("module main wrapper my_opt", Phase.OPTIMIZER),
        ("module main wrapper adam", Phase.OPTIMIZER),
        ("module main dcp_save", Phase.CHECKPOINT),
        ("module main call unshard", Phase.COMMS),
        ("module main backward", Phase.BACKWARD),
    ):
        frames = tuple(replace(one, file=one.file.replace(SITE, "/home/rich/pytorch/")) for one in stack(names))
        assert classify(frames)[0] is phase, names
    assert read_stack(frames).where == "backward train.py:2"


PROVEN: dict[tuple[Need, ...], tuple[str, ...]] = {
    # A batch that is taken out of shared memory is no copy to a device, and what a data set logs is no logging.
    (Need.TORCH_LOADER,): (
        "module main next next_data get_data",
        "module main next next_data fetch item decode",
        "module main stateful fetch item decode",
        "module main pl_fetch next next_data",
        "module main next next_data fetch item decode logging",
        "module main next next_data get_data try_get queue_get rebuild",
        "module main next next_data pin",
    ),
    (Need.TORCH_LOADER, Need.COLLATE_IN_STACK): ("module main next next_data fetch user_collate",),
    (Need.LOAD_IN_STACK,): tuple(
        f"module main {names}" for names in ("load", "from_pretrained load", "dcp_load c10d all_reduce")
    ),
    (Need.DDP_IN_STACK,): ("module main call ddp call net",),
    (Need.FSDP_IN_STACK,): ("module main call unshard",),
    (Need.RECOMPUTE_IN_STACK,): ("module main backward engine unpack call net",),
    (Need.ALLOCATOR_IN_STACK,): ("module main empty_cache",),
    (Need.IMPORT_IN_STACK,): ("module import torch_module convert",),
    (Need.COPY_IN_STACK,): ("main hf_inner hf_step hf_prepare",),
    (Need.SCALER_IN_STACK,): ("module main scaler scaler_item",),
    (Need.SYNC_IN_STACK,): ("module main synchronize",),
    (): tuple(
        f"module main {names}"
        for names in ("get_batch", "dali", "node_loader node node_prefetch", "to", "load_dataset", "hub_download")
    ),
}


@pytest.mark.parametrize(("needs", "names"), [(needs, one) for needs, names in PROVEN.items() for one in names])
def test_needs_tell_what_a_stack_proves(needs, names):
    assert read_stack(stack(names)).needs == set(needs)


def test_a_stack_without_frames_says_so_and_names_of_others_cannot_reach_the_screen_raw():
    assert classify(()) == (Phase.OTHER, None)
    assert read_stack(()).where == "no Python frames"
    words = read_stack((StackFrame("\x1b[31mmain" * 40, "/home/usr/\x1b]0;x\x07.py" * 9, 3),)).where
    assert words.isprintable()
    assert len(words) < 120


def test_no_rule_is_shadowed_by_an_earlier_one_and_every_phase_says_what_it_gives_way_to():
    for rule in RULES:
        path = rule.path + "some_file.py" if rule.path.endswith("/") else rule.path
        file = path if path.startswith("<") else SITE + path
        for name in rule.functions or {"some_function"}:
            assert mark_frame(name, file) == rule.mark, (rule.path, name)
    assert set(GIVES_WAY) == set(Phase)
    assert all(Phase.INPUT in inner for phase, inner in GIVES_WAY.items() if phase is not Phase.INPUT)


SMALL = {
    "marks": {"sync": {"phase": "SYNC"}},
    "also_at": {"lib/a": "lib/b"},
    "frames": {"lib/a/x.py": {"sync": "wait join"}, "lib/": {"sync": "* but get"}},
    "installed": {"rich/": {"sync": "*"}},
    "leaves": {},
    "below": {"__iter__": {"lib/a/x.py": {"sync": "*"}}},
    "words": {"wait for all": "join"},
    **{one.value: {} for one in FrameKind},
    "retries": {"lib/a/x.py": "sleep", "lib/c.py, lib/d/": "*"},
    "names": {"sync": ["wait_.*", "sync"]},
}


def test_a_table_of_frames_is_read_into_rules():
    rules = make_rules(SMALL)
    files = [(rule.path, rule.functions, rule.but) for rule in rules.frames["x.py"]]
    assert files == [(f"lib/{name}/x.py", {"wait", "join"}, set()) for name in "ab"]
    others = [(rule.path, rule.but, rule.installed) for rule in rules.frames[""]]
    assert others == [("rich/", set(), True), ("lib/", {"get"}, False)]
    asks = [rule.path for some in rules.kinds[FrameKind.RETRIES].values() for rule in some]
    assert sorted(asks) == ["lib/a/x.py", "lib/b/x.py", "lib/c.py", "lib/d/"]
    assert (list(rules.below), rules.words) == (["__iter__"], {"join": "wait for all"})
    ((mark, pattern),) = rules.names
    assert mark.weak
    assert pattern.fullmatch("wait_all")


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"marks": {"sync": {"phase": "SINK"}}}, "sync: phase: SINK: no Phase of that name"),
        ({"marks": {"sync": {"faze": "SYNC"}}}, "sync: faze: no such key"),
        ({"frames": {"x.py": {"snyc": "*"}}}, "x.py: snyc: no such mark"),
        ({"frames": {"x.py": {"sync": ""}}}, "x.py: sync: names no function"),
        ({"frames": {"x.py": {"sync": 4}}}, "4 is no str"),
        ({"names": {"snyc": ["x"]}}, "snyc: no such mark"),
        ({"names": {"sync": "x"}}, "'x' is no tuple"),
    ],
)
def test_a_row_of_frames_that_does_not_fit_says_where_and_why(part, told):
    with pytest.raises(TableError, match=rf"^{re.escape(told)}"):
        make_rules({**SMALL, **part})


_TEXT = st.text(max_size=30)
_FRAME = st.builds(
    StackFrame,
    st.one_of(_TEXT, st.sampled_from([function for function, _ in FRAMES.values()])),
    st.one_of(_TEXT, st.sampled_from([file for _, file in FRAMES.values()])),
    st.integers(0, 10_000),
)


@example((StackFrame("", "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", 0),))
@given(st.lists(_FRAME, max_size=40).map(tuple))
def test_any_frames_are_read_without_raising(frames):
    reading = read_stack(frames)
    assert (reading.phase, reading.part) == classify(frames)
    inside = Phase.LOAD if reading.part is DataPart.READ else Phase.DATA_WAIT
    assert reading.part is None or reading.phase is inside
    assert reading.where
    assert reading.where.isprintable()
