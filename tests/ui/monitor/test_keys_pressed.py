"""Every key of the table is pressed once and does what the table says."""

import pytest

from tests.ui.monitor import key_checks_capture, key_checks_job, key_checks_stacks
from tests.ui.monitor.driving import drive
from tpmon.ui.monitor.keys import KEYS

CHECKS = {**key_checks_job.CHECKS, **key_checks_stacks.CHECKS, **key_checks_capture.CHECKS}


def test_every_key_of_the_table_has_a_check():
    assert set(CHECKS) == {row.id for row in KEYS}


@pytest.mark.parametrize("key_id", [row.id for row in KEYS])
def test_key(key_id):
    drive(CHECKS[key_id])
