"""Submissions: a folder of records with a card that says who made them and how, checked on their data alone.

Nothing of a submission is imported, made or unpickled: solvers stay names, and scores are computed again only by judges
that come with shardgym, with the settings of the suite's own tracks.
"""

from __future__ import annotations

import inspect
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.costs.base import GROUP as COSTS
from shardgym.costs.base import is_repeatable
from shardgym.errors import InputError
from shardgym.evaluation.result import PACKED_RECORDS, RECORDS, RUN_INFO, TASKS, RunInfo, read_task, records_file
from shardgym.evaluation.solver import GROUP
from shardgym.evaluation.store import ERRORS
from shardgym.evaluation.verify.check import verify
from shardgym.evaluation.verify.records import RecordCheck, StoredRecord, check_without_judge, read_file
from shardgym.files import files_below, read_line_file, write_whole
from shardgym.records import CONFIG, Label, Note, Record, read_text
from shardgym.registry import find_class, registered
from shardgym.tasks.suites import Suite, load_suite, suite_names
from shardgym.tasks.suites.spec import CostChoice, parse_yaml

CARD = "card.yaml"

#: What is still to be filled in.
OPEN = "?"

#: Files that a run leaves in its folder besides; they are no part of a submission and do no harm.
_LEFT_BY_RUNS = (".lock", "table.md", ERRORS)

#: Of all files together, unpacked: sixty tasks of twenty solvers with three seeds take 15 MB.
MAX_BYTES = 2**27

#: How many of many things of one kind are named.
_NAMED = 3


@dataclass(frozen=True, config=CONFIG)
class SolverEntry(Record):
    """What a card says of one solver.

    Attributes:
        version: of its code: a release, or a commit.
        code: where the code is, or "not public".
        parameters: how its parameters were chosen, and on which tasks; "defaults" where nothing was chosen.
        training_data: what it was trained on; "none" for one that was not.
        queries: how many plans it asks the oracle to price per task, "0", "about 500", "not counted".
        hardware: what it solved on: processor or GPU, cores, memory.
    """

    version: Note
    code: Note
    parameters: Note
    training_data: Note
    queries: Note
    hardware: Note


@dataclass(frozen=True, config=CONFIG)
class SubmissionCard(Record):
    """`card.yaml` of a submission.

    Attributes:
        submitted_by: person or group.
        contact: how to reach them.
        solvers: by label, every solver of the records that does not come with shardgym.
        oracle: cost that solvers could query, as in `run.json`.
        remarks: anything else that readers should know.
    """

    submitted_by: Annotated[Note, Field(min_length=1)]
    contact: Annotated[Note, Field(min_length=1)]
    oracle: Label
    solvers: dict[Label, SolverEntry] = field(default_factory=dict)
    remarks: Note = ""
    schema: Literal["shardgym.submission/1"] = "shardgym.submission/1"


class SubmissionCheck(NamedTuple):
    """One thing that was checked.

    Attributes:
        what: in words.
        problems: what is wrong and what to do, one sentence each; none where it passes.
        note: what a reader of a passed check should know.
    """

    what: str
    problems: Sequence[str]
    note: str = ""


def check_submission(folder: Path) -> list[SubmissionCheck]:
    """Check a folder that somebody submits: files, card, completeness, feasibility, scores.

    What cannot be checked because something before it fails is left out.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: expected one with {RECORDS}, {RUN_INFO} and {CARD}")
    checks = [SubmissionCheck("files", _file_problems(folder))]
    if checks[0].problems:
        return checks
    try:
        run = RunInfo.beside(folder)
        file = records_file(folder)
        assert run is not None  # among the files that there must be
        assert file is not None
        rows, gaps = read_file(file)
    except InputError as error:
        return [*checks, SubmissionCheck("records", [str(error)])]
    records = [row for row in rows if isinstance(row, StoredRecord)]
    damaged = [f"{row.where}: {row.reason}" for row in rows if isinstance(row, RecordCheck)]
    checks.append(SubmissionCheck("card", _card_problems(folder, run)))
    checks.append(SubmissionCheck("records", _first(damaged), f"{len(records)} records of {len(run.solvers)} solvers"))
    suite, problems = _suite_of(run)
    checks.append(SubmissionCheck("suite and track", problems, f"{run.suite}, judged by {run.judge}"))
    names = {record.result.made_from or record.result.solver for record in records}
    unknown = sorted(name for name in names if name not in registered(GROUP) and ":" not in name)
    remedy = "run your own as LABEL=module:Class"
    checks.append(SubmissionCheck("solvers", [f"'{name}' is no solver of shardgym: {remedy}" for name in unknown]))
    missing = [f"{gap}; run again with the same command" for gap in gaps if "missing" in gap]
    if suite is not None and run.num_tasks < len(suite):
        missing.append(f"{run.num_tasks} of the {len(suite)} tasks of {suite.name}: run without --limit")
    checks.append(SubmissionCheck("completeness", missing))
    if problems:
        return checks
    checks.append(SubmissionCheck("feasibility", _first(_infeasible(folder, records))))
    if not damaged and not checks[-1].problems:
        checks.append(_scores(folder, run))
    return checks


def write_card(folder: Path) -> Path:
    """Write a card to be filled in: what is open is a question mark.

    Raises:
        InputError: there is a card already, or no run.
    """
    path = folder / CARD
    run = RunInfo.beside(folder)
    if run is None:
        raise InputError(f"{folder} holds no {RUN_INFO}: expected the folder of a run")
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists: fill it in, or remove it")
    entries = "".join(
        f"  {solver}:\n" + "".join(f"    {name}: '{OPEN}'\n" for name in SolverEntry.__annotations__)
        for solver in _own_solvers(run)
    )
    write_whole(
        path,
        f"schema: {SubmissionCard.schema}\nsubmitted_by: '{OPEN}'\ncontact: '{OPEN}'\noracle: {run.oracle}\n"
        f"solvers:{'' if entries else ' {}'}\n{entries}remarks: ''\n",
    )
    return path


def _own_solvers(run: RunInfo) -> list[str]:
    return [solver for solver in run.solvers if solver not in registered(GROUP)]


def _file_problems(folder: Path) -> list[str]:
    problems = []
    total = 0
    try:
        records = records_file(folder)
        names = (RECORDS if records is None else records.name, RUN_INFO)
        problems += [f"{name} is missing: give the folder of a run" for name in names if not (folder / name).is_file()]
        if records is not None and not problems:
            total += len(read_line_file(records)) - records.stat().st_size
    except InputError as error:
        problems.append(str(error))
    for path in sorted(files_below(folder)):
        name = str(path.relative_to(folder))
        expected = name in (RECORDS, PACKED_RECORDS, RUN_INFO, CARD, *_LEFT_BY_RUNS) or (
            path.parent.name == TASKS and path.parent.parent == folder and path.suffix == ".json"
        )
        if not stat.S_ISREG(path.lstat().st_mode):
            problems.append(f"{name!a} is a link, pipe or device: put the file itself there, or remove it")
        elif not expected:
            problems.append(f"{name!a} is no part of a submission: remove it")
        else:
            total += path.stat().st_size
    if total > MAX_BYTES:
        problems.append(
            f"{total / 2**20:,.0f} MiB in all, expected at most {MAX_BYTES / 2**20:.0f}: submit fewer seeds"
        )
    return _first(problems)


def _card_problems(folder: Path, run: RunInfo) -> list[str]:
    path = folder / CARD
    if not path.exists():
        return [f"{CARD} is missing: 'shardgym submit {folder} --card' writes one to fill in"]
    try:
        text = read_text(path, follow=False)
        card = SubmissionCard.from_dict(parse_yaml(text, str(path), as_text=True), source=str(path))
    except InputError as error:
        return [str(error)]
    own = _own_solvers(run)
    problems = [f"{CARD} says nothing of solver '{solver}'" for solver in own if solver not in card.solvers]
    problems += [f"{CARD} has solver '{s}', the records have {', '.join(own)}" for s in card.solvers if s not in own]
    if card.oracle != run.oracle:
        problems.append(f"{CARD}: oracle is '{card.oracle}', the records were made with '{run.oracle}'")
    answers = {"submitted_by": card.submitted_by, "contact": card.contact}
    for solver, entry in card.solvers.items():
        answers |= {f"solvers.{solver}.{name}": getattr(entry, name) for name in SolverEntry.__annotations__}
    still_open = [name for name, text in answers.items() if text.strip() in ("", OPEN)]
    if still_open:
        problems.append(f"{CARD}: still to be filled in: {', '.join(still_open)}")
    return _first(problems)


def _suite_of(run: RunInfo) -> tuple[Suite | None, list[str]]:
    """Return the suite of a run, and what keeps it from a board."""
    if run.suite not in suite_names():
        return None, [f"suite '{run.suite}' does not come with shardgym: expected one of {', '.join(suite_names())}"]
    suite = load_suite(run.suite)
    names = run.judge, run.oracle
    tracks = [track for track in suite.tracks if (track.judge.cost, track.oracle.cost) == names]
    for track in tracks:
        if _has_settings(track.judge, run.judge_settings) and _has_settings(track.oracle, run.oracle_settings):
            return suite, []
    if tracks:
        what = f"settings of judge '{run.judge}' or oracle '{run.oracle}' are not those of their track of {run.suite}"
        return suite, [f"{what}: run with --cost {run.judge}, without settings and without --oracle"]
    known = "; ".join(f"--cost {track.judge.cost} --oracle {track.oracle.cost}" for track in suite.tracks)
    return suite, [f"judge '{run.judge}' with oracle '{run.oracle}' is no track of {run.suite}: run with {known}"]


def _has_settings(choice: CostChoice, recorded: Mapping[str, Any]) -> bool:
    """Say whether a run recorded the settings of a track's cost: those that the track names, and defaults besides."""
    parameters = inspect.signature(find_class("cost", COSTS, choice.cost)).parameters.values()
    defaults = {p.name: p.default for p in parameters}
    # From YAML, a version comes as a number.
    expected = {name: str(value) for name, value in {**defaults, **choice.settings}.items()}
    found = {name: str(value) for name, value in {**defaults, **recorded}.items()}
    return found == expected


def _infeasible(folder: Path, records: Sequence[StoredRecord]) -> Iterator[str]:
    for record in records:
        try:
            check = check_without_judge(record, read_task(record.result, folder))
        except InputError as error:
            yield f"{record.where}: {error}"
            continue
        if check is not None and check.status == "mismatch":
            yield f"{check.where}: {check.reason}"


def _scores(folder: Path, run: RunInfo) -> SubmissionCheck:
    """Score deterministic records again; times can be measured again only on the machine they are of."""
    if not is_repeatable(run.judge):
        note = f"measured on {run.hardware}: 'shardgym verify {folder}' there measures again"
        return SubmissionCheck("scores", [], note)
    report = verify(folder)
    wrong = [f"{row.where}: {row.reason}" for row in report.rows if row.status not in ("ok", "failure")]
    if not wrong and not report.ok:
        wrong = [report.footer()]
    return SubmissionCheck("scores", _first(wrong), f"{report.count('ok')} scored again")


def _first(problems: Sequence[str] | Iterator[str]) -> list[str]:
    """Return the first of many problems, and how many there are more."""
    found = list(problems)
    more = len(found) - _NAMED
    return found if more <= 1 else [*found[:_NAMED], f"and {more} more of this kind"]
