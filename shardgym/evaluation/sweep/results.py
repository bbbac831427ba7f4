"""Results of a sweep: one line per machine in a file that grows, and the task and plan of each in files beside it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.errors import InputError
from shardgym.evaluation.sweep.bounds import Savings
from shardgym.evaluation.sweep.machines import Machine
from shardgym.files import append_flushed, drop_torn_line, read_lines, write_whole
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Digest, Label, Number, Record, Whole
from shardgym.tasks.task import ShardingTask

MACHINES = "machines.jsonl"

_logger = logging.getLogger("shardgym.evaluation.sweep")

#: Fields that say what was asked; records of one machine that differ in them do not share a folder.
_ASKED = ("task_hash", "solver", "solver_settings", "seed", "time_limit_s", "cost_version")


@dataclass(frozen=True, config=CONFIG)
class MachineResult(Record):
    """What a plan for one machine takes.

    Attributes:
        gpu: name of the card.
        devices: how many of it.
        task_hash: digest of the task.
        batch_size: samples of a step over all devices.
        solver: name of what made the plan.
        solver_settings: keyword arguments it was made with.
        seed: given to it.
        time_limit_s: likewise; None when there was none.
        cost_version: of the cost `gpu`, which planned and priced.
        status: `ok`; `infeasible`: no plan fits, or the solver found none; `error`: the solver failed.
        reason: one line, why status is not "ok".
        plan: digest of the plan.
        embedding_ms: a step of the embeddings, by `gpu`.
        memory_left_bytes: on the device that has least.
        savings: see `Savings`.
        solve_time_s: seconds that the solver took.
        notes: what a reader must know of the cost.
    """

    gpu: Label
    devices: Annotated[Whole, Field(ge=1)]
    task_hash: Digest
    batch_size: Annotated[Whole, Field(ge=1)]
    solver: Label
    seed: Annotated[Whole, Field(ge=0)]
    cost_version: Label
    status: Literal["ok", "infeasible", "error"]
    solve_time_s: Annotated[Number, Field(ge=0)]
    solver_settings: dict[str, Any] = Field(default_factory=dict)
    time_limit_s: Annotated[Number, Field(gt=0)] | None = None
    reason: str | None = None
    plan: Digest | None = None
    embedding_ms: Annotated[Number, Field(gt=0)] | None = None
    memory_left_bytes: Annotated[Whole, Field(ge=0)] | None = None
    savings: Savings | None = None
    notes: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    schema: Literal["shardgym.machine/1"] = "shardgym.machine/1"

    @model_validator(mode="after")
    def _complete(self) -> MachineResult:
        found = (self.plan, self.embedding_ms, self.memory_left_bytes, self.savings)
        if any((value is None) == (self.status == "ok") for value in found):
            raise ValueError(f"status '{self.status}' does not agree with the plan and what it takes")
        if (self.status == "ok") == (self.reason is not None):
            raise ValueError("a machine has a plan or a reason why not")
        return self

    @property
    def machine(self) -> Machine:
        """Which machine it is."""
        return Machine(self.gpu, self.devices)

    @property
    def bound_by(self) -> str:
        """What holds the plan up; "" where there is none."""
        if self.savings is None or self.embedding_ms is None:
            return ""
        return self.savings.bound_by(self.embedding_ms)

    def check_asked(self, asked: MachineResult, folder: Path) -> None:
        """Raise `InputError` where this is of another question than what is asked now."""
        for name in _ASKED:
            here, wanted = getattr(self, name), getattr(asked, name)
            if here != wanted:
                what = "another model, batch or memory" if name == "task_hash" else f"{name} {here}, not {wanted}"
                raise InputError(f"{folder} holds {self.machine.name} of {what}: give another folder")


def read_results(folder: Path) -> dict[Machine, MachineResult]:
    """Return the results of a folder, the last of each machine; none where there is no file.

    A last line that was cut off while it was written is removed, which is logged as a warning.

    Raises:
        InputError: a line is no result.
    """
    path = folder / MACHINES
    torn = drop_torn_line(path)
    if torn is not None:
        _logger.warning("%s: dropped a machine that was cut off while it was written", torn.where(path))
    lines = read_lines(path) if path.exists() else []
    results = [MachineResult.from_json(line.text.decode(errors="replace"), line.where(path)) for line in lines]
    return {result.machine: result for result in results}


def add_result(folder: Path, result: MachineResult, task: ShardingTask, plan: ShardingPlan | None) -> None:
    """Write task and plan, then append the result: after a kill, what is in the file is complete.

    Raises:
        InputError: files cannot be written there.
    """
    write_whole(folder / f"{result.machine.name}.task.json", task.to_json(indent=2) + "\n")
    if plan is not None:
        write_whole(folder / f"{result.machine.name}.plan.json", plan.to_json(indent=2) + "\n")
    append_flushed(folder / MACHINES, (result.to_json() + "\n").encode())
