"""Plans under other kernels are held against those that are kept."""

import json


def test_a_plan_that_is_not_kept_is_named_with_the_command_that_keeps_it(tool, monkeypatch, capsys):
    what, made = next(iter(json.loads(tool.EXPECTED.read_text()).items()))
    found = {"blas": "Own", what: made, "new-v1/0 mine": "abc"}
    monkeypatch.setattr(tool, "ARITHMETICS", {"own": tool.Arithmetic("Own")})
    monkeypatch.setattr(tool, "_solved", lambda *_: found)
    assert tool.main([]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "own: 1 of 2 plans are the same"
    assert second == "  new-v1/0 mine: abc, but none is kept: 'python tools/check_arithmetic.py --write' keeps it"
