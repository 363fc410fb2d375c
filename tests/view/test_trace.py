"""The columns of a trace: values that are told apart as numpy does, without what that imports."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpmon.trace.reading.columns import distinct

WITHOUT = """
import sys, numpy as np
from tpmon.trace.reading.columns import distinct
distinct(np.array([3, 1, 3])), distinct(np.array([1 << 60, -5]))
print("numpy.ma" in sys.modules)
"""


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
@given(data=st.data())
def test_distinct_values_are_those_of_numpy(kind, data):
    bounds = np.iinfo(kind)
    near = st.integers(-3, 3)
    values = np.array(data.draw(st.lists(near | st.integers(bounds.min, bounds.max), max_size=40)), kind)
    found = distinct(values)
    assert found.dtype == values.dtype
    assert found.tolist() == np.unique(values).tolist()


def test_telling_values_apart_imports_nothing():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
