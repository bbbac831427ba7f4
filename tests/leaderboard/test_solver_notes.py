"""Settings of solvers stand under the table."""

from test_ranking import board_of, record

from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.notes import footer


def test_settings_are_named_and_defaults_are_not(tmp_path):
    board = board_of(tmp_path, {"mine": [1.0, 3.0]}, solver_settings={"beam_width": 1, "levels": 2})
    assert "Settings of mine: beam_width=1, levels=2." in footer(rank(board))
    assert not any("Settings of" in note for note in footer(rank(board_of(tmp_path, {"mine": [1.0, 3.0]}))))


def test_records_of_one_solver_with_different_settings_are_a_warning(tmp_path):
    rows = [record("mine", 0, 1.0), record("mine", 1, 1.0, solver_settings={"beam_width": 1})]
    (tmp_path / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    (board,) = load_boards([tmp_path])
    assert "WARNING: records of mine were made with different settings: none; beam_width=1." in footer(rank(board))
