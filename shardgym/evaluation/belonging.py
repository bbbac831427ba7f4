"""Whether the records of a folder belong to a run: same suite and tasks, same costs, same solver settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from shardgym.errors import InputError
from shardgym.evaluation.entrant import Entrant
from shardgym.evaluation.result import Result, recipe
from shardgym.evaluation.run_info import RunInfo
from shardgym.evaluation.tasks import Tasks

_REMEDY = "give another folder, or --resume all to start afresh"


def check_records(
    results: Sequence[Result], folder: Path, info: RunInfo, suite: Tasks, entrants: Iterable[Entrant]
) -> None:
    """Check every record of a folder, also those that this run does not ask for.

    Raises:
        InputError: a record is of another judge, oracle, time limit, task, or of a solver with other settings.
    """
    recipes = {e.spec.title: recipe(e.spec.made_from, e.spec.settings) for e in entrants}
    for result in results:
        info.check(result, str(folder))
        _check_recipe(result, folder, recipes.get(result.solver))
    for index in sorted({result.task_index for result in results}):
        digest = suite[index].digest if index < len(suite) else None
        if any(result.task_hash != digest for result in results if result.task_index == index):
            raise InputError(f"{folder} holds records of another task {index} of suite '{suite.name}': {_REMEDY}")


def _check_recipe(result: Result, folder: Path, wanted: str | None) -> None:
    if wanted is not None and wanted != result.recipe:
        raise InputError(
            f"{folder} holds records of solver '{result.solver}' with settings {result.recipe}, this run has {wanted}: "
            f"give this one a label of its own, {_REMEDY}"
        )
