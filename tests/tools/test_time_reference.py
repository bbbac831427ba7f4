"""The reference of paces is the geometric mean of what groups of two, four and eight devices take."""

import sys

import numpy as np
import pytest


def test_the_reference_is_the_mean_of_new_groups_of_all_sizes(tool, monkeypatch, tmp_path):
    groups = []

    class Group:
        def __init__(self, devices, *_):
            self.devices, self.is_open = devices, False
            groups.append(self)

        def start(self):
            self.is_open = True

        def close(self):
            self.is_open = False

    def taken_ms(group, devices):
        assert (group.devices, group.is_open) == (devices, True)
        return devices * np.arange(1.0, 13.0)

    monkeypatch.setattr(tool, "step_ranks", Group)
    monkeypatch.setattr(tool.pace, "time_reference", taken_ms)
    monkeypatch.setattr(tool.pace, "__file__", str(tmp_path / "pace.py"))
    monkeypatch.setattr(sys, "argv", ["time_reference.py", "--repeats", "2"])
    tool.main()
    assert [group.devices for group in groups] == [2, 4, 8] * 2
    assert not any(group.is_open for group in groups)
    written = tool.pace.Reference.load(tmp_path / "pace.json")
    assert written.compute_ms == pytest.approx(4 * np.arange(1.0, 13.0))
