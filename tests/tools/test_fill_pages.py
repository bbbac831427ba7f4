"""The tool that writes what is generated in pages: what it changes, what it says, and what it counts."""

import lzma
import re
import shutil

import pytest
from board_toys import board_of

from shardgym.errors import InputError
from shardgym.leaderboard import BASE

STALE = "# Page\n\n<!-- table: leaderboards/quick-v2-fbgemm -->\nold\n<!-- end -->\n"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(STALE)
    return path


def test_check_writes_nothing_and_fails_until_the_page_was_written(tool, page, capsys):
    assert tool.main([str(page), "--check"]) == 1
    assert capsys.readouterr().out == f"{page}: is not up to date\n"
    assert page.read_text() == STALE
    assert tool.main([str(page)]) == 0
    assert capsys.readouterr().out == f"{page}: written\n"
    assert "neuroshard_plus" in page.read_text()
    assert tool.main([str(page), "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_records_are_packed_with_pages(tool, page, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "PAGES", [page])
    tool._rankings.cache_clear()
    board = tmp_path / "leaderboards" / "quick-v2-fbgemm"
    shutil.copytree(tool.ROOT / "leaderboards" / "quick-v2-fbgemm", board)
    packed = board / "records.jsonl.xz"
    content = packed.read_bytes()
    plain = board / "records.jsonl"
    plain.write_bytes(lzma.decompress(content))
    packed.unlink()
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.main(["--check"]) == 1
    assert f"{plain}: is not packed\n" in capsys.readouterr().out
    assert tool.main([]) == 0
    assert capsys.readouterr().out == f"{plain}: packed, {len(content)} bytes\n{page}: written\n"
    assert not plain.exists()
    assert packed.read_bytes() == content
    assert tool.main(["--check"]) == 0
    plain.write_bytes(lzma.decompress(content))
    packed.unlink()
    (board / "README.md").unlink()
    assert tool.main(["--check"]) == 1
    assert not (board / "README.md").exists()
    assert tool.main([]) == 0  # a new board
    text = (board / "README.md").read_text()
    assert text.startswith("# quick-v2-fbgemm\n\n<!-- table: leaderboards/quick-v2-fbgemm -->\n\n**quick-v2: ")


def test_a_block_of_a_page_is_filled(tool, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- times -->\nold\n<!-- end -->\nafter\n")
    tool.fill(page, "times", [{"tables": 26, "s": 0.5}])
    assert page.read_text().split("\n")[:3] == ["before", "<!-- times -->", ""]
    assert "|       26 | 0.500 |" in page.read_text()
    with pytest.raises(InputError, match="has no block <!-- costs -->"):
        tool.fill(page, "costs", [])


def test_overall_tables_and_lists_of_boards_go_into_pages(tool, page, tmp_path, monkeypatch):
    boards = tmp_path / "leaderboards"
    ones = [1.0] * 6
    measured = {"suite": "dlrm4-v2", "judge": "fbgemm"}
    boards.mkdir()
    board_of(boards / "dlrm4-v2-fbgemm", {BASE: ones, "torchrec": [2.0] * 6}, **measured)
    simulated = {BASE: ones, "dreamer": ones, "torchrec": [0.5, 4.0] * 3}  # not clearly behind
    board_of(boards / "dlrm4-v2-simulator", simulated, **measured | {"judge": "simulator"})
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    blocks = ["overall: all", "overall: measured", "boards: leaderboards", "table: leaderboards/dlrm4-v2-simulator"]
    page.write_text("".join(f"<!-- {block} -->\n<!-- end -->\n" for block in blocks))
    assert tool.main([str(page)]) == 0
    every, scored, links, open_board, _ = page.read_text().split("<!-- end -->\n")
    assert ("| dreamer " in every, "| dreamer " in scored) == (True, False)
    assert "rating of its own, made of figures for GPUs and their links, and queries no oracle: [TorchRec](" in scored
    assert ("| torchrec " in open_board, "rating of its own" in open_board) == (True, False)
    row = "| `dlrm4-v2` | [6 tasks by fbgemm](leaderboards/dlrm4-v2-fbgemm/README.md) | [6 tasks by simulator]("
    assert row in re.sub(" +", " ", links)
    page.write_text("<!-- overall: some -->\n<!-- end -->\n")
    assert tool.main([str(page)]) == InputError.exit_code
