"""The benchmark of libraries: records that are there make the table of the page."""

import json
import sys


def test_records_that_are_there_become_the_table_of_a_page(tool, monkeypatch, tmp_path, capsys):
    one = {"ratio": 0.97, "failed": 1}
    many = {"ratio": 0.95, "failed": 0}
    record = {"library": "sb3-contrib", "version": "2.9.2", "steps": 1_500_000, "seconds": 120.0}
    (tmp_path / "maskable_ppo.json").write_text(json.dumps(record | {"over_lookahead": {"1": one, "16": many}}))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- libraries -->\n<!-- end -->\nbehind\n")
    arguments = ["--examples", "maskable_ppo", "--out", str(tmp_path), "--page", str(page)]
    monkeypatch.setattr(sys, "argv", ["libraries.py", *arguments])
    tool.main()
    header, _, line = (text.split() for text in capsys.readouterr().out.splitlines())
    assert header[:2] == ["script", "library"]
    said = "examples/maskable_ppo.py sb3-contrib 2.9.2 1,500,000 12,500 0.970, 1 failed 0.950"
    assert line == said.split()
    assert "12,500" in page.read_text()
