"""What a session keeps at hand: ten minutes, less of a large job, never less than the minute that the judge has."""

import pytest

from tests.frames import make_frame, make_gpu, make_process, make_rank
from tests.recordings import pass_by, run_seconds
from tpmon.record.step import MOST_ROWS, ROWS_OF_FRAME, Recall


def remember(seconds: int, processes: int, ranks: int = 1, cards: int = 0) -> int:
    """Return how many Frames of a job of this size are kept after some seconds."""
    recall = Recall()
    frame = make_frame(
        processes=tuple(make_process(4000 + number) for number in range(processes)),
        ranks=tuple(make_rank(4000 + number) for number in range(ranks)),
        gpus=tuple(make_gpu(number) for number in range(cards)),
    )
    for step in pass_by(run_seconds(seconds, frame)):
        recall.append(step)
    kept = recall.steps()
    assert [one.read.taken_ns for one in kept] == sorted(one.read.taken_ns for one in kept)
    return len(kept)


@pytest.mark.parametrize(
    ("processes", "ranks", "cards", "kept"),
    [
        (0, 1, 0, 601),
        (3, 2, 0, MOST_ROWS // (ROWS_OF_FRAME + 5)),
        (7, 2, 8, MOST_ROWS // (ROWS_OF_FRAME + 17)),
        (137, 8, 8, 61),
        (3_000, 64, 8, 61),
    ],
)
def test_ten_minutes_are_kept_or_as_many_rows_as_there_may_be_and_a_minute_of_any_job(processes, ranks, cards, kept):
    assert remember(700, processes, ranks, cards) == kept


def test_what_is_left_of_a_slower_pace_is_counted_in_time():
    recall = Recall()
    for step in pass_by(run_seconds(100, every_s=10.0)):
        recall.append(step)
    assert len(recall.steps()) == 61
