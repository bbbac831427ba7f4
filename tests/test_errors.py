"""Errors of other libraries, and arguments of another kind, in one line."""

import numpy as np
import pytest

from shardgym.errors import InputError, check_instance, check_int, error_text


def test_the_text_of_an_error_is_its_class_and_first_line_and_its_cause():
    assert error_text(OSError("no such library\nsecond line")) == "OSError: no such library"
    assert error_text(KeyError()) == "KeyError: no message"
    error = OSError("could not load x.so")
    error.__cause__ = ImportError("libnvidia-ml.so.1: cannot open")
    assert error_text(error) == "OSError: could not load x.so (ImportError: libnvidia-ml.so.1: cannot open)"


@pytest.mark.parametrize("value", [3, np.int64(3), np.array(3)])
def test_whole_numbers_are_pythons_and_numpys(value):
    assert (check_int("n", value), type(check_int("n", value))) == (3, int)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, [1], np.float64(1), np.array([1, 2]), int])
def test_nothing_else_is_a_whole_number(value):
    with pytest.raises(InputError, match=r"^n: expected an integer >= 0, got "):
        check_int("n", value)


def test_an_instance_of_another_class_is_named():
    with pytest.raises(InputError, match=r"^x: expected an InputError, got str 'b'; raise it$"):
        check_instance("x", "b", InputError, "raise it")
