"""Errors of other libraries in one line."""

from __future__ import annotations

from shardgym.errors import error_text


def test_the_text_of_an_error_is_its_class_and_first_line():
    assert error_text(OSError("no such library\nsecond line")) == "OSError: no such library"
    assert error_text(KeyError()) == "KeyError: no message"


def test_the_text_of_an_error_includes_its_cause():
    error = OSError("could not load x.so")
    error.__cause__ = ImportError("libnvidia-ml.so.1: cannot open")
    assert error_text(error) == "OSError: could not load x.so (ImportError: libnvidia-ml.so.1: cannot open)"
