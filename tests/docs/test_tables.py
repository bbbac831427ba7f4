"""What is generated in documents is what the records and the code say."""

import functools
import json
from pathlib import Path

import pytest

from shardgym import InputError, load_suite
from shardgym.evaluation.result import PACKED_RECORDS, record_files
from shardgym.files import read_lines

ROOT = Path(__file__).parents[2]
#: `tox -e leaderboards` makes all pages again.
BOARD = ROOT / "leaderboards/production-v1-gpu/README.md"


def test_what_is_generated_is_up_to_date(script):
    """As `python tools/fill_pages.py --check` says: overall table, its chart, and a board."""
    tool = script("fill_pages")
    assert not tool.outdated([*tool.OVERALL, BOARD])


def test_what_a_command_prints_is_shown_below_it(script, tmp_path):
    tool = script("fill_pages")
    page = "<!-- run: shardgym list costs --json -->\n<!-- end -->\n"
    filled = tool.filled(page, tmp_path / "page.md")
    assert "\n```text\n$ shardgym list costs --json\n[\n" in filled
    assert tool.filled(filled, tmp_path / "page.md") == filled
    with pytest.raises(InputError, match="'shardgym solve nothing' ends with 2: shardgym: error: Missing option"):
        tool.printed("shardgym solve nothing")


def test_committed_records_are_of_committed_code_and_of_shipped_tasks():
    """Tasks are those of the suite; the checkout was not modified. Of every seventh record, to be quick."""
    digest_of = functools.cache(lambda suite, index: load_once(suite)[index].digest)
    load_once = functools.cache(load_suite)
    for file in record_files([ROOT / "leaderboards"]):
        assert file.name == PACKED_RECORDS, f"{file}: 'python tools/fill_pages.py' packs it"
        for result in (json.loads(line.text) for line in read_lines(file)[::7]):
            assert digest_of(result["suite"], result["task_index"]) == result["task_hash"]
            assert result["commit"]
            assert not result["commit"].endswith("+"), f"{file} was made from a modified checkout"
