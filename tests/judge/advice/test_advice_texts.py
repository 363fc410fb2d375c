"""What a remedy tells a person to paste: true of torch and of the tools, with its caveats in what is seen."""

from dataclasses import replace

import pytest

from tpmon.judge.advice import facts as advice_facts
from tpmon.judge.advice.choose import CATALOGUE, Chosen, Risk, choose, fill_remedy
from tpmon.judge.advice.facts import RunFacts, write_thaw
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.finding import write_ceiling, write_try
from tpmon.model.known import Missing
from tpmon.model.process import Freezer
from tpmon.model.verdict import Kind


def fill(name: str, facts: RunFacts | None = None) -> Chosen:
    remedy = CATALOGUE[name]
    return fill_remedy(remedy, frozenset(remedy.needs), facts or RunFacts())


def list_ids(kind: Kind, cause: str, *needs: Need) -> list[str]:
    return [one.remedy.id for one in choose(kind, cause, frozenset(needs), RunFacts())]


def test_a_mapped_checkpoint_goes_into_the_parameters_that_the_optimizer_has():
    paste = fill("map-the-checkpoint").paste
    assert "mmap=True" in paste
    assert "assign" not in paste


def test_what_changes_the_science_of_a_run_is_said_in_what_is_seen():
    assert write_try(fill("exchange-less-often")).splitlines()[0].endswith(" (changes the experiment):")
    assert " (changes the numerics): torch.set_float32" in write_try(fill("tf32"))
    assert "changes the" not in write_try(fill("pin-off"))
    assert {fill(name).remedy.risk for name in ("exchange-less-often", "tf32", "pin-off")} == set(Risk)


def test_a_title_that_ends_with_its_paste_says_it_once_with_its_risk():
    assert write_try(fill("set-to-none")).count("zero_grad") == 1
    assert write_try(fill("persistent-workers")).startswith("keep the workers between epochs: persistent_w")


def test_no_sync_is_advised_only_where_the_model_may_have_it():
    assert "exchange-less-often" not in list_ids(Kind.COMMS_BOUND, "transfer", Need.TRANSFER_SEEN, Need.FSDP_IN_STACK)
    seen = frozenset((Need.TRANSFER_SEEN,))
    chosen = {one.remedy.id: one for one in choose(Kind.COMMS_BOUND, "transfer", seen, RunFacts())}
    assert not chosen["exchange-less-often"].certain
    assert "accumulate-no-sync" in list_ids(Kind.COMMS_BOUND, "transfer", Need.FSDP_IN_STACK)


def test_fully_shard_reduces_in_the_last_micro_step():
    assert "set_requires_gradient_sync(micro == accumulation - 1)" in fill("accumulate-no-sync").paste


def test_parameters_are_gathered_further_ahead_than_by_default_and_not_over_a_full_network():
    assert "blocks[i + 1 : i + 3]" in fill("fsdp-prefetch").paste
    seen = (Need.FSDP_IN_STACK, Need.GPU_MEMORY_FREE)
    assert "fsdp-prefetch" in list_ids(Kind.COMMS_BOUND, "unknown", *seen)
    assert "fsdp-prefetch" not in list_ids(Kind.COMMS_BOUND, "transfer", *seen, Need.TRANSFER_SEEN)


def test_kept_parameters_need_their_bytes_on_every_card():
    assert "bytes of all parameters free" in fill("fsdp-keep-parameters").paste


def test_shards_stay_within_a_machine_where_ranks_run_on_several():
    seen = (Need.FSDP_IN_STACK, Need.GPU_MEMORY_FREE, Need.TRANSFER_SEEN)
    assert "fsdp-hybrid" not in list_ids(Kind.COMMS_BOUND, "transfer", *seen)
    assert "fsdp-hybrid" in list_ids(Kind.COMMS_BOUND, "transfer", *seen, Need.RANKS_ELSEWHERE)
    assert "(world // 8, 8)" in fill("fsdp-hybrid", RunFacts(ranks=8)).paste


def test_an_accumulation_of_one_is_not_halved_to_none():
    assert "accumulation = max(1, accumulation // 2)" in fill("bigger-micro-batch").paste


@pytest.mark.parametrize(("world", "workers"), [(2, 3), (1, 1)])
def test_each_worker_of_each_rank_reads_shards_of_its_own(world, workers):
    paste = fill("read-in-order").paste
    assert "world * info.num_workers" in paste
    taken = [
        shard
        for rank in range(world)
        for worker in range(workers)
        for shard in range(rank * workers + worker, 24, world * workers)
    ]
    assert sorted(taken) == list(range(24))


def test_workers_on_a_small_shared_memory_are_told_of_it_in_the_paste():
    unread = Missing("shared memory was not seen to grow")
    small = RunFacts(shm_total_bytes=64 << 20, shm_room=unread)
    for name in ("start-workers", "more-workers"):
        paste = fill(name, small).paste
        assert "# /dev/shm here is 64" in paste
        assert "--shm-size=8g or --ipc=host" in paste
        assert "shm" not in fill(name, replace(small, shm_room=9.0)).paste
        assert "shm" not in fill(name, replace(small, shm_total_bytes=8 << 30)).paste
        assert "shm" not in fill(name).paste


def test_a_large_shared_memory_is_looked_into_before_it_is_made_larger():
    assert fill("bigger-shm", RunFacts(shm_total_bytes=64 << 20)).paste.startswith("docker run --shm-size=8g")
    large = fill("bigger-shm", RunFacts(shm_total_bytes=8 << 30)).paste
    assert large.startswith("du -ah /dev/shm")
    # How large it is does not tell a container from a machine of its own.
    assert "docker run --shm-size=16g" in large
    assert "# without a container: sudo mount -o remount,size=16g" in large


def test_no_paste_stats_what_a_descriptor_is_open_on_or_starts_a_second_training():
    """A coloured ls asks the file behind each link: on a dead mount it hangs, too."""
    pastes = [remedy.paste for remedy in CATALOGUE.values()]
    assert not [paste for paste in pastes if "ls -l /proc" in paste]
    assert sum("readlink /proc/" in paste for paste in pastes) == 4
    assert "{script}" not in CATALOGUE["local-environment"].paste


def test_no_paste_takes_cpus_that_the_job_was_not_given():
    for name in ("widen-affinity", "unbind-workers"):
        paste = fill(name).paste
        assert "OMP_PROC_BIND=false torchrun" in paste
        assert "nproc" not in paste
        assert "cpu_count" not in paste


def test_the_link_of_a_card_is_asked_by_its_own_query():
    assert "--query-gpu=pcie.link.gen.current,pcie.link.gen.max," in fill("reseat-card").paste


def test_a_fast_path_of_nccl_that_was_switched_off_comes_first():
    row = (Kind.COMMS_BOUND, "transfer")
    assert list_ids(*row, Need.TRANSFER_SEEN, Need.NCCL_PATH_OFF)[0] == "nccl-paths-on"
    assert "nccl-paths-on" not in list_ids(*row, Need.TRANSFER_SEEN)


def test_a_loss_is_read_after_fifty_steps_have_added_to_it():
    assert "if (step + 1) % 50 == 0:" in fill("sync-rarely").paste


def test_clocks_that_nobody_set_are_not_set_back():
    row = (Kind.GPU_THROTTLED, "odd-cap")
    assert list_ids(*row, Need.CARD_SICK)[0] == "check-card"
    assert list_ids(*row, Need.CARD_CAPPED)[0] == "reset-caps"
    assert fill("check-card", RunFacts(card=3)).paste.endswith("-d PERFORMANCE,POWER,TEMPERATURE -i 3")


def test_a_loader_that_stands_still_raises_without_a_name_of_a_worker():
    assert "after 120 s" in CATALOGUE["time-limit-for-batches"].proof


def test_data_are_brought_near_before_they_are_written_anew():
    chosen = list_ids(Kind.DATA_BOUND, "storage-bandwidth", Need.WORKERS_IO_WAIT)
    assert chosen.index("stage-on-nvme") < chosen.index("denser-format")
    seen = frozenset((Need.WORKERS_IO_WAIT,))
    assert not any(one.certain for one in choose(Kind.DATA_BOUND, "storage-bandwidth", seen, RunFacts()))


@pytest.mark.parametrize("need", [Need.AFFINITY_BELOW_HOST, Need.QUOTA_BELOW_AFFINITY])
def test_cores_that_the_machine_has_and_the_job_has_not_come_first(need):
    row = (Kind.DATA_BOUND, "cpu-transform")
    full = (Need.WORKERS_PRESENT, Need.TORCH_LOADER, Need.WORKERS_CPU_BOUND, Need.CORES_FULL)
    assert list_ids(*row, *full)[0] == "transform-once"
    assert list_ids(*row, *full, need)[0] == "more-cores"
    assert list_ids(*row, *full, need, Need.POOL_IN_WORKERS)[0] == "cap-worker-threads"
    assert list_ids(*row, *(set(full) - {Need.CORES_FULL}), need)[0] == "transform-once"


def test_cores_of_slurm_reach_the_steps_of_srun():
    assert "export SRUN_CPUS_PER_TASK=N" in fill("more-cores").paste


def test_only_what_is_not_random_is_stored():
    assert "only what is not random can be stored" in fill("transform-once").text


def test_jpegs_are_decoded_on_a_gpu_if_that_is_what_the_workers_do():
    row = (Kind.DATA_BOUND, "cpu-transform")
    assert "decode-on-gpu" not in list_ids(*row, Need.WORKERS_CPU_BOUND)
    seen = frozenset((Need.WORKERS_CPU_BOUND, Need.GPU_PRESENT))
    decode = next(one for one in choose(*row, seen, RunFacts()) if one.remedy.id == "decode-on-gpu")
    assert decode.text.startswith("if the workers decode JPEGs: ")


def test_a_host_that_grows_beside_a_gpu_keeps_no_graphs():
    row = (Kind.MEMORY_PRESSURE, "leak")
    assert list_ids(*row, Need.ANON_GROWS)[0] == "detach-history"
    assert list_ids(*row, Need.ANON_GROWS, Need.GPU_PRESENT)[0] == "find-leak"


def test_one_worker_takes_its_time_for_each_batch():
    """A share w in loading: n workers leave the longer of w / n and 1 - w."""
    facts = RunFacts(
        ranks=1,
        workers_per_rank=0,
        needed_ratio=14.0,
        cores_free=1.0,
        memory_free_bytes=1 << 34,
        worker_rss_bytes=1 << 28,
        worker_busy_ratio=1.0,
        budget_cores=2.0,
        waiting_ratio=0.9,
    )
    assert advice_facts.fill("{workers}: {workers_gain} of {gain}", facts) == "2: 2.2x of 10.0x"
    assert advice_facts.fill("{workers_gain}", replace(facts, cores_free=9.0, worker_busy_ratio=0.1)) == "10.0x"
    on_card = replace(facts, cores_free=0.0, loading_ratio=0.8, waiting_ratio=0.5)
    assert advice_facts.fill("{workers}: {workers_gain}", on_card) == "1: 1.2x"
    assert advice_facts.fill("{workers_gain}", RunFacts()) == "1 / (share of the wait / N)"


MORE = RunFacts(
    ranks=1,
    workers_per_rank=2,
    needed_ratio=4.0,
    cores_free=1.0,
    memory_free_bytes=1 << 34,
    worker_rss_bytes=1 << 28,
    worker_busy_ratio=1.0,
    budget_cores=4.0,
    waiting_ratio=0.75,
)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "3: 1.5x"),
        ({"cores_free": 0.5}, "3: 1.4x"),
        ({"cores_free": 9.0}, "8: 4.0x"),
        ({"cores_free": 9.0, "needed_ratio": 1.6}, "4: 1.6x"),
        ({"cores_free": 9.0, "waiting_ratio": 0.4}, "8: 1.7x"),
        ({"cores_free": 0.0, "worker_busy_ratio": 0.05}, "8: 4.0x"),
        ({"cores_free": 2.0, "ranks": 2}, "3: 1.5x"),
        ({"cores_free": 0.0}, "2: 1.0x"),
    ],
)
def test_more_workers_gain_what_their_number_cores_and_the_need_allow(fields, said):
    """Two workers on cores that are nearly used up do not gain all that the wait costs."""
    assert advice_facts.fill("{workers}: {growth_gain}", replace(MORE, **fields)) == said


def test_more_workers_say_in_their_ceiling_what_they_gain_themselves():
    waits = Suspicion(Kind.DATA_BOUND, "cpu-transform", 0.75, 2.0, frozenset(("a",)), "text", (), share=0.75)
    for name in ("more-workers", "more-readers", "more-sleepers"):
        few, many, unread = fill(name, MORE), fill(name, replace(MORE, cores_free=9.0)), fill(name)
        assert write_ceiling(waits, few) == "4.0x if all of it goes away, 1.5x with num_workers=3"
        assert write_ceiling(waits, many) == "4.0x if all of it goes away"
        assert write_ceiling(waits, unread) == "4.0x if all of it goes away"
        open_share = replace(waits, share=Missing("not measured"))
        assert isinstance(write_ceiling(open_share, unread), Missing)


# control groups

ID = "0f3a" * 16


@pytest.mark.parametrize(
    ("version", "directory", "expected"),
    [
        (1, "/sys/fs/cgroup/freezer/a b", "echo THAWED | sudo tee '/sys/fs/cgroup/freezer/a b/freezer.state'"),
        (2, "/sys/fs/cgroup/train", "echo 0 | sudo tee /sys/fs/cgroup/train/cgroup.freeze"),
        (1, f"/sys/fs/cgroup/freezer/docker/{ID}", "docker unpause 0f3a0f3a0f3a  # or: echo THAWED"),
        (2, f"/sys/fs/cgroup/system.slice/docker-{ID}.scope", "docker unpause 0f3a0f3a0f3a  # or: echo 0"),
        (2, f"/sys/fs/cgroup/user.slice/libpod-{ID}.scope", "podman unpause 0f3a0f3a0f3a  # or: echo 0"),
        (2, "/sys/fs/cgroup/system.slice/train.service", "sudo systemctl thaw train.service  # or: echo 0"),
        (2, "/sys/fs/cgroup/system.slice/train.service/sub", "echo 0 | sudo tee"),
        (1, "/sys/fs/cgroup/freezer/system.slice/train.service", "echo THAWED | sudo tee"),
        (1, "/sys/fs/cgroup/freezer/slurm/uid_7/job_912/step_0", "scontrol resume 912  # or: echo THAWED"),
        (2, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_912", "scontrol resume 912  # or: echo 0"),
    ],
)
def test_the_one_who_froze_it_is_asked_first(version, directory, expected):
    assert write_thaw(Freezer(version, "/x", directory)).startswith(expected)


def test_a_group_out_of_view_has_no_command():
    why = Missing("a group above what can be seen here was frozen: thaw it outside")
    assert write_thaw(Freezer(2, "this container", why)) == why
