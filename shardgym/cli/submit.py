"""submit: whether a folder of records with its card can go onto a board."""

from __future__ import annotations

from pathlib import Path

import click

from shardgym.cli.options import Command, folder, json_option
from shardgym.cli.output import is_ascii_only, print_json
from shardgym.evaluation.submission import CARD, check_submission, write_card


@click.command("submit", cls=Command)
@click.argument("path", type=folder, metavar="FOLDER")
@click.option("--card", "make_card", is_flag=True, help=f"Write {CARD}, to be filled in, and check nothing.")
@json_option
def submit(path: Path, make_card: bool, as_json: bool) -> int:
    """Check a folder that is to go onto a board, and say what to do.

    FOLDER is that of a run, with a card: who submits, and of every solver that does not come with shardgym its version,
    how its parameters were chosen and on which tasks, training data, queries and hardware.

    Checked are the files, the card, whether all records are there, whether plans are feasible, and, where the judge is
    deterministic, their costs. Only data are read: no solver is imported. Exit code 1 when anything fails.
    """
    if make_card:
        card = write_card(path)
        print_json({"card": str(card)}) if as_json else print(f"wrote {card}: replace every '?', then run this again")
        return 0
    checks = check_submission(path)
    passed = not any(check.problems for check in checks)
    if as_json:
        print_json({"passed": passed, "checks": [check._asdict() for check in checks]})
        return 0 if passed else 1
    marks = ("ok  ", "FAIL") if is_ascii_only() else ("✅", "❌")
    for check in checks:
        print(f"{marks[bool(check.problems)]} {check.what:<16} {'' if check.problems else check.note}".rstrip())
        for problem in check.problems:
            print(f"     {problem}")
    print()
    if passed:
        print(f"Ready: put {path} below leaderboards/ and open a pull request (CONTRIBUTING.md, Submitting).")
    else:
        print("Not ready: mend what is named above, then run this again.")
    return 0 if passed else 1
