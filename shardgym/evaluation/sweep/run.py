"""sweep: a plan for every machine, by a solver in a process of its own, and what it takes by the cost `gpu`.

Machines are jobs of an engine (`shardgym.engines`); this process alone writes what comes of them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from shardgym.costs.gpu.cost import GpuCost
from shardgym.engines import Engine, HereEngine
from shardgym.evaluation.result import Result
from shardgym.evaluation.runner import check_by_name
from shardgym.evaluation.running_solver import RunningSolver
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.evaluation.sweep.bounds import savings
from shardgym.evaluation.sweep.machines import Machine
from shardgym.evaluation.sweep.results import MachineResult, add_result, read_results
from shardgym.files import only_writer
from shardgym.machine import utc_now
from shardgym.plans.plan import ShardingPlan
from shardgym.processes import CAN_FORK
from shardgym.tasks.task import ShardingTask

logger = logging.getLogger(__name__)

#: Is told of every result as it comes, and whether it was there before.
OnResult = Callable[[MachineResult, bool], None]


class MachineJob(NamedTuple):
    """A machine to plan for.

    Attributes:
        task: of the machine.
        blank: the result without what is to be found.
    """

    task: ShardingTask
    blank: MachineResult

    def __str__(self) -> str:
        return self.blank.machine.name


#: What comes of a machine, and its plan if there is one.
Planned = tuple[MachineResult, ShardingPlan | None]


def sweep(
    tasks: Mapping[Machine, ShardingTask],
    solver: SolverSpec,
    folder: Path,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    timeout_s: float = 3600.0,
    engine: Engine | None = None,
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
        engine: where machines are planned for; None for here, one after the other.
        on_result: see `OnResult`.

    Raises:
        InputError: the folder holds another sweep, is in use or cannot be written; a device is no GPU that is known;
            the solver cannot be made, or is an object that the engine cannot make in other processes.
        MeasurementError: a machine ended several workers of the engine.
    """
    cost = GpuCost()
    doing = HereEngine() if engine is None else engine
    if not isinstance(doing, HereEngine):
        check_by_name(doing, [solver])
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
    found: dict[Machine, MachineResult] = {}
    with only_writer(folder):
        there = read_results(folder)
        for machine, asked in blank.items():
            if machine in there:
                there[machine].check_asked(asked, folder)
        jobs = []
        for machine, task in tasks.items():
            if machine not in there or there[machine].status == "error":
                jobs.append(MachineJob(task, blank[machine]))
                continue
            found[machine] = there[machine]
            if on_result is not None:
                on_result(there[machine], True)
        open_worker = functools.partial(_open_planner, solver, timeout_s)
        for job, (result, plan) in doing.run(open_worker, jobs, alone=False) if jobs else ():
            add_result(folder, result, job.task, plan)
            found[result.machine] = result
            if on_result is not None:
                on_result(result, False)
    return [found[machine] for machine in tasks]


@contextmanager
def _open_planner(solver: SolverSpec, timeout_s: float) -> Iterator[Callable[[MachineJob], Planned]]:
    """Make a solver in the process that plans."""
    cost = GpuCost()
    with closing(RunningSolver(solver, cost, timeout_s=timeout_s, isolate=CAN_FORK)) as running:
        running.start()
        running.wait_until_made()
        yield functools.partial(_planned, running, cost)


def _planned(running: RunningSolver, cost: GpuCost, job: MachineJob) -> Planned:
    """Let the solver make a plan for one machine."""
    task, blank = job
    answer = running.solve(task, _question(running.spec, task, blank), _log_trace)
    plan = answer.plan if answer.status == "unmeasured" else None
    result = dataclasses.replace(
        blank,
        status="infeasible" if answer.status == "infeasible" else "error",
        reason=answer.reason,
        solve_time_s=answer.solve_time_s,
    )
    if plan is None:
        return result, None
    priced = cost.evaluate(task, [plan])[0]
    if not priced.feasible:
        return dataclasses.replace(result, reason=priced.reason), None
    spare = [room - used for room, used in zip(task.capacity_bytes, plan.bytes_per_device(task), strict=True)]
    result = dataclasses.replace(
        result,
        status="ok",
        reason=None,
        plan=plan.digest,
        embedding_ms=priced.total_ms,
        memory_left_bytes=min(spare),
        savings=savings(task, plan),
        notes=priced.notes,
    )
    return result, plan


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
