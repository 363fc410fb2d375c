"""What a remedy tells a person to paste: true of torch and of the tools, with its caveats in what is seen."""

from __future__ import annotations

import pytest

from tpmon.judge.advice import CATALOGUE, choose, fill_remedy
from tpmon.judge.advice_entry import Chosen, Risk
from tpmon.judge.advice_facts import Facts
from tpmon.judge.advice_needs import Need
from tpmon.judge.verdict import write_try
from tpmon.model.verdict import Kind


def fill(name: str, facts: Facts | None = None) -> Chosen:
    remedy = CATALOGUE[name]
    return fill_remedy(remedy, frozenset(remedy.needs), facts or Facts())


def list_ids(kind: Kind, cause: str, *needs: Need) -> list[str]:
    return [one.remedy.id for one in choose(kind, cause, frozenset(needs), Facts())]


def test_a_mapped_checkpoint_goes_into_the_parameters_that_the_optimizer_has() -> None:
    paste = fill("map-the-checkpoint").paste
    assert "mmap=True" in paste
    assert "assign" not in paste


def test_what_changes_the_science_of_a_run_is_said_in_what_is_seen() -> None:
    assert write_try(fill("exchange-less-often")).splitlines()[0].endswith(" (changes the experiment):")
    assert " (changes the numerics): torch.set_float32" in write_try(fill("tf32"))
    assert "changes the" not in write_try(fill("pin-off"))
    assert {fill(name).remedy.risk for name in ("exchange-less-often", "tf32", "pin-off")} == set(Risk)


def test_a_title_that_ends_with_its_paste_says_it_once_with_its_risk() -> None:
    assert write_try(fill("set-to-none")).count("zero_grad") == 1
    assert write_try(fill("persistent-workers")).startswith("keep the workers between epochs: persistent_w")


def test_no_sync_is_advised_for_certain_only_where_the_model_has_it() -> None:
    seen = frozenset((Need.TRANSFER_SEEN, Need.FSDP_IN_STACK))
    chosen = {one.remedy.id: one for one in choose(Kind.COMMS_BOUND, "transfer", seen, Facts())}
    assert not chosen["exchange-less-often"].certain


def test_fully_shard_reduces_in_the_last_micro_step() -> None:
    assert "set_requires_gradient_sync(micro == accumulation - 1)" in fill("accumulate-no-sync").paste


def test_parameters_are_gathered_further_ahead_than_by_default_and_not_over_a_full_network() -> None:
    assert "blocks[i + 1 : i + 3]" in fill("fsdp-prefetch").paste
    seen = (Need.FSDP_IN_STACK, Need.GPU_MEMORY_FREE)
    assert "fsdp-prefetch" in list_ids(Kind.COMMS_BOUND, "unknown", *seen)
    assert "fsdp-prefetch" not in list_ids(Kind.COMMS_BOUND, "transfer", *seen, Need.TRANSFER_SEEN)


def test_kept_parameters_need_their_bytes_on_every_card() -> None:
    assert "bytes of all parameters free" in fill("fsdp-keep-parameters").paste


def test_shards_stay_within_a_machine_where_ranks_run_on_several() -> None:
    seen = (Need.FSDP_IN_STACK, Need.GPU_MEMORY_FREE, Need.TRANSFER_SEEN)
    assert "fsdp-hybrid" not in list_ids(Kind.COMMS_BOUND, "transfer", *seen)
    assert "fsdp-hybrid" in list_ids(Kind.COMMS_BOUND, "transfer", *seen, Need.RANKS_ELSEWHERE)
    assert "(world // 8, 8)" in fill("fsdp-hybrid", Facts(ranks=8)).paste


def test_an_accumulation_of_one_is_not_halved_to_none() -> None:
    assert "accumulation = max(1, accumulation // 2)" in fill("bigger-micro-batch").paste


@pytest.mark.parametrize(("world", "workers"), [(2, 3), (1, 1)])
def test_each_worker_of_each_rank_reads_shards_of_its_own(world: int, workers: int) -> None:
    paste = fill("read-in-order").paste
    assert "world * info.num_workers" in paste
    taken = [
        shard
        for rank in range(world)
        for worker in range(workers)
        for shard in range(rank * workers + worker, 24, world * workers)
    ]
    assert sorted(taken) == list(range(24))
