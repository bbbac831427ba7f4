"""sweep: a plan for every machine, by a solver in a process of its own, and what it takes by the cost `gpu`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from shardgym.children import CAN_FORK
from shardgym.costs.gpu.cost import GpuCost
from shardgym.evaluation.result import Result
from shardgym.evaluation.running_solver import RunningSolver
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.files import only_writer
from shardgym.provenance import utc_now
from shardgym.sweep.bounds import savings
from shardgym.sweep.machines import Machine
from shardgym.sweep.results import MachineResult, add_result, read_results
from shardgym.task import ShardingTask

logger = logging.getLogger(__name__)

#: Is told of every result as it comes, and whether it was there before.
OnResult = Callable[[MachineResult, bool], None]


def sweep(
    tasks: Mapping[Machine, ShardingTask],
    solver: SolverSpec,
    folder: Path,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    timeout_s: float = 3600.0,
    on_result: OnResult | None = None,
) -> list[MachineResult]:
    """Make a plan for every machine and return what each takes.

    Results are appended to `FOLDER/machines.jsonl` as they come; what is there already is not computed again, but for
    machines on which the solver failed. Task and plan of a machine are in files of its name.

    Args:
        tasks: one for each machine, see `task_on`.
        solver: makes the plans; its oracle is the cost `gpu`.
        folder: of the results; made if need be.
        seed: given to the solver.
        time_limit_s: given to a solver that takes one.
        timeout_s: seconds after which a solver is stopped, which is an error of that machine alone.
        on_result: see `OnResult`.

    Raises:
        InputError: the folder holds another sweep, is in use or cannot be written; a device is no GPU that is known; or
            the solver cannot be made.
    """
    cost = GpuCost()
    blank = {
        machine: MachineResult(
            gpu=machine.gpu,
            devices=machine.devices,
            task_hash=task.digest,
            batch_size=task.batch_size,
            solver=solver.title,
            solver_settings=dict(solver.settings),
            seed=seed,
            time_limit_s=time_limit_s,
            cost_version=cost.version,
            status="error",
            reason="not solved yet",
            solve_time_s=0.0,
        )
        for machine, task in tasks.items()
    }
    found: list[MachineResult] = []
    with only_writer(folder):
        there = read_results(folder)
        for machine, asked in blank.items():
            if machine in there:
                there[machine].check_asked(asked, folder)
        running = RunningSolver(solver, cost, timeout_s=timeout_s, isolate=CAN_FORK)
        with closing(running):
            if any(machine not in there or there[machine].status == "error" for machine in tasks):
                running.start()
                running.wait_until_made()
            for machine, task in tasks.items():
                old = there.get(machine)
                is_new = old is None or old.status == "error"
                result = _planned(running, cost, task, blank[machine], folder) if is_new or old is None else old
                found.append(result)
                if on_result is not None:
                    on_result(result, not is_new)
    return found


def _planned(
    running: RunningSolver, cost: GpuCost, task: ShardingTask, blank: MachineResult, folder: Path
) -> MachineResult:
    """Let the solver make a plan for one machine; write and return what came of it."""
    answer = running.solve(task, _question(running.spec, task, blank), _log_trace)
    plan = answer.plan if answer.status == "unmeasured" else None
    result = dataclasses.replace(
        blank,
        status="infeasible" if answer.status == "infeasible" else "error",
        reason=answer.reason,
        solve_time_s=answer.solve_time_s,
    )
    if plan is not None:
        priced = cost.evaluate(task, [plan])[0]
        if priced.feasible:
            result = dataclasses.replace(
                result,
                status="ok",
                reason=None,
                plan=plan.digest,
                embedding_ms=priced.total_ms,
                memory_left_bytes=min(
                    room - used for room, used in zip(task.capacity_bytes, plan.bytes_per_device(task), strict=True)
                ),
                savings=savings(task, plan),
                notes=priced.notes,
            )
        else:
            result = dataclasses.replace(result, reason=priced.reason)
            plan = None
    add_result(folder, result, task, plan)
    return result


def _question(spec: SolverSpec, task: ShardingTask, blank: MachineResult) -> Result:
    """Return what a solver at work is asked for."""
    return Result(
        suite="sweep",
        task_index=0,
        task_hash=task.digest,
        solver=spec.title,
        made_from=spec.made_from,
        solver_settings=dict(spec.settings),
        seed=blank.seed,
        judge=GpuCost.name,
        oracle=GpuCost.name,
        hardware=f"{blank.gpu}-modelled",
        status="unmeasured",
        reason="not solved yet",
        solve_time_s=0.0,
        time_limit_s=blank.time_limit_s,
        started=utc_now(),
    )


def _log_trace(heading: str, trace: str) -> None:
    logger.debug("%s\n%s", heading, trace)
