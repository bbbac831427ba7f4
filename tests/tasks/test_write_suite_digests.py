"""The maintenance command for digests: writes, leaves alone, refuses."""

import importlib
from pathlib import Path

import pytest

from shardgym.tasks.suites import digests_path


@pytest.fixture
def tool(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    module = importlib.import_module("draw_suite")
    monkeypatch.setattr(module, "digests_path", lambda name: tmp_path / f"{name}.digests")
    return module


def test_digests_are_written_and_left_alone_when_right(tool, tmp_path, capsys):
    assert tool.main(["digests", "tiny-v1"]) == 0
    assert (tmp_path / "tiny-v1.digests").read_text() == digests_path("tiny-v1").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-v1.digests"]
    assert tool.main(["digests", "tiny-v1"]) == 0
    assert "unchanged" in capsys.readouterr().out


def test_digests_that_differ_are_replaced_only_with_the_option(tool, tmp_path):
    (tmp_path / "tiny-v1.digests").write_text("other\n")
    assert tool.main(["digests", "tiny-v1"]) == 1
    assert (tmp_path / "tiny-v1.digests").read_text() == "other\n"
    assert tool.main(["digests", "tiny-v1", "--replace"]) == 0
    assert (tmp_path / "tiny-v1.digests").read_text() == digests_path("tiny-v1").read_text()


def test_an_unknown_suite_is_bad_usage(tool, capsys):
    assert tool.main(["digests", "tiny-v2"]) == 2
    assert "did you mean tiny-v1" in capsys.readouterr().err
