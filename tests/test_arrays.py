"""Arrays that grow."""

import numpy as np
import pytest

from shardgym.arrays import GrowingArrays


def test_arrays_grow_and_keep_their_rows():
    arrays, expected = GrowingArrays(a=((), np.int64), b=((2,), np.float64)), np.arange(500)
    for first in range(0, 500, 25):
        new = expected[first : first + 25]
        assert arrays.append(a=new, b=np.stack([new, -new], axis=1)) == first
    np.testing.assert_array_equal(
        np.column_stack([arrays["a"], arrays["b"]]), np.stack([expected, expected, -expected], 1)
    )
    with pytest.raises(ValueError, match="the same number of rows for a, b"):
        arrays.append(a=[1])
