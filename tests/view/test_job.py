"""What the figures of the job say, and of whom."""

from dataclasses import replace

from tests.frames import make_frame
from tpmon.model.host import SUMMED_ANON
from tpmon.model.known import NOT_APPLICABLE
from tpmon.view.job import describe_job


def test_memory_of_a_control_group_is_not_called_that_of_the_job():
    frame = make_frame()
    of_group = replace(frame.memory, limit_bytes=NOT_APPLICABLE, anon_source="control group /user.slice")
    for memory, used, growth in (
        (of_group, "used by its control group", "  growth of the control group"),
        (replace(frame.memory, limit_bytes=16 << 30, anon_source=SUMMED_ANON), "used", "  growth"),
    ):
        groups = describe_job(replace(frame, memory=memory))
        labels = [fact.label for group in groups if group.label == "memory" for fact in group.facts]
        assert (used in labels, growth in labels) == (True, True)
