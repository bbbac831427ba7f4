"""verify: score every stored plan again, all plans of a task together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from shardgym.arguments import check_list, check_name
from shardgym.errors import InputError
from shardgym.evaluation.store import record_files
from shardgym.evaluation.tasks import task_of
from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.claim import Claim
from shardgym.evaluation.verify.fresh import check_unmeasured, score
from shardgym.evaluation.verify.judges import Judges
from shardgym.evaluation.verify.promised import hold_to_run
from shardgym.evaluation.verify.report import VerifyReport
from shardgym.evaluation.verify.sessions import mixed_sessions
from shardgym.evaluation.verify.solve_again import SolveAgain
from shardgym.evaluation.verify.static import without_judge
from shardgym.evaluation.verify.stored import Stored, read_stored
from shardgym.progress import ProgressBar
from shardgym.records import canonical_json


def verify(
    paths: str | Path | Iterable[str | Path], *, trust: Collection[str] = (), solve: bool = False,
    progress: bool = False,
) -> VerifyReport:  # fmt: skip
    """Score every stored plan again with the judge and the settings of its record, and hold records to their run.

    `shardgym.evaluation.verify.rules.RULE` says when a stored and a fresh cost agree. What a run has is in the
    `run.json` beside its records.

    Args:
        paths: records files, or folders that are searched for `records.jsonl`; one, or several.
        trust: judges and solvers of the form `module:Class` that may be imported; a record that names another is
            skipped, so that somebody else's file cannot make this process run code.
        solve: solve every task again, too, with the record's solver, seed and oracle, and compare plans.
        progress: draw a progress bar on standard error when it is a terminal.

    Raises:
        InputError: a path does not exist or cannot be read, a `run.json` is damaged, or an argument is of another kind.
    """
    given = [paths] if isinstance(paths, str | Path) else check_list("paths", paths, "files and folders", ordered=False)
    files = record_files([check_name("path", path) for path in given])
    trust = frozenset(check_list("trust", trust, "names 'module:Class'", ordered=False))
    held = [hold_to_run(file, read_stored(file)) for file in files]
    rows = [row for some, _ in held for row in some]
    gaps = [*(gap for _, some in held for gap in some), *mixed_sessions(rows)]
    done: dict[str, Checked] = {}
    groups = _by_task([row for row in rows if isinstance(row, Stored)])
    with Judges(trust) as judges, ProgressBar(shown=progress, total=len(groups), unit="task", desc="verify") as bar:
        for group in groups:
            done |= {checked.where: checked for checked in _check_task(group, judges)}
            bar.update()
    if solve:
        gaps += _solve_again([row for row in rows if isinstance(row, Stored)], done, trust, progress=progress)
    return VerifyReport([row if isinstance(row, Checked) else done[row.where] for row in rows], gaps)


def _solve_again(
    stored: Sequence[Stored], done: dict[str, Checked], trust: Collection[str], *, progress: bool
) -> list[str]:
    """Replace rows by what solving again shows, and return a line for what was not solved again."""
    solvers = SolveAgain(trust)
    with ProgressBar(shown=progress, total=len(stored), unit="plan", desc="solve") as bar:
        done |= {row.where: row for row in solvers.check(stored, done, bar.update)}
    return solvers.gaps


def _by_task(stored: Sequence[Stored]) -> list[list[Stored]]:
    """Group records of one file, task and judge: they are scored in one call."""
    groups: dict[tuple[str, ...], list[Stored]] = defaultdict(list)
    for s in stored:
        settings = canonical_json(s.result.judge_settings)
        groups[(str(s.path), s.result.task_hash, s.result.judge, settings)].append(s)
    return list(groups.values())


def _check_task(group: Sequence[Stored], judges: Judges) -> list[Checked]:
    checked: list[Checked] = []
    claims: list[Claim] = []
    for stored in group:
        try:
            task = task_of(stored.result, stored.path.parent)
        except InputError as error:
            checked.append(stored.row("unreadable", str(error)))
            continue
        settled, plan, cost = without_judge(stored, task), stored.result.plan, stored.result.cost
        if settled is not None:
            checked.append(settled)
        elif plan is not None and cost is not None and stored.result.status == "ok":
            claims.append(Claim(stored, plan, cost))
        elif plan is not None:
            checked.append(check_unmeasured(stored, plan, task, judges))
    return checked + (score(claims, task, judges) if claims else [])
