"""Solving the tasks of stored records again, and comparing the new plans with the stored ones.

A plan is to be the same where processor, kernels, versions and source of the solver are those of the record. Elsewhere
it may be another one: then it is said what it costs, and all plans of a file together must cost the same on average,
see `COST_SHARE`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shardgym.children import CAN_FORK
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, MissingDependencyError
from shardgym.evaluation.result import RUN_INFO, Result, RunInfo, read_task
from shardgym.evaluation.running_solver import RunningSolver
from shardgym.evaluation.solver_spec import SolverSpec, check_solvers
from shardgym.evaluation.verify.agreement import EXACT
from shardgym.evaluation.verify.records import RecordCheck, StoredRecord
from shardgym.machine import arithmetic, commit, versions
from shardgym.plans.plan import ShardingPlan
from shardgym.records import canonical_json, sha256
from shardgym.tasks.task import ShardingTask

#: Returns the cost model of a name and settings, or None and why it cannot be made here.
GetCost = Callable[[str, Mapping[str, Any]], tuple[CostModel | None, str]]

#: Settings in somebody else's records may ask for anything: a plan may take so many seconds unless more are given, ...
TIMEOUT_S = 600.0
#: ... and so much memory: ten times what the hungriest of our solvers needs.
MAX_BYTES = 2**34
#: Processor seconds of a plan that a sample may have.
_MOST_S = 2.0


def solve_again(
    records: Sequence[StoredRecord],
    checks: Mapping[str, RecordCheck],
    trust: Collection[str],
    get_oracle: GetCost,
    get_judge: GetCost,
    timeout_s: float = TIMEOUT_S,
    sample: int | None = None,
) -> Generator[tuple[RecordCheck, str]]:
    """Solve with the oracle that `run.json` names, as the run did, and compare plans.

    Args:
        records: of any files.
        checks: outcome of scoring them again, by file and line.
        trust: solvers of the form `module:Class` that may be imported.
        get_oracle: makes oracles.
        get_judge: makes judges, which say what another plan costs.
        timeout_s: seconds that a plan may take.
        sample: records of each file that are solved again, see `sampled`; None for all.

    Yields:
        The updated check of every record, in their order, and why it could not be solved again; "" where it was.
    """
    running: dict[tuple[str, str, int], RunningSolver | str] = {}
    chosen = {record.where for record in (records if sample is None else sampled(records, sample))}
    with ExitStack() as stack:
        for record in records:
            check = checks[record.where]
            why_not = ""
            if check.status not in ("mismatch", "unreadable"):
                oracle, why_not = _oracle_of(record.path, get_oracle)
                result = record.result
                key = (result.solver, result.recipe, id(oracle))
                solver: RunningSolver | str = why_not
                if record.where not in chosen:
                    solver = f"not among the {sample} of a file that were chosen"
                elif oracle is not None:
                    if key not in running:
                        running[key] = _run_solver(result, trust, oracle, timeout_s, stack)
                    solver = running[key]
                if not isinstance(solver, str):
                    task = read_task(result, record.path.parent)
                    again = solver.solve(task, _asked(result))
                    if solver.timed_out:
                        solver = f"{result.solver} takes longer than {timeout_s:g} s: --timeout gives it more"
                        running[key] = solver
                    else:
                        assert oracle is not None
                        check = _compare(result, check, again)
                        if again.plan is not None and check.solved == "other":
                            judge, _ = get_judge(result.judge, result.judge_settings)
                            scorer = judge if judge is not None and judge.deterministic else oracle
                            check = _with_cost(check, task, record.plan, again.plan, scorer)
                why_not = solver if isinstance(solver, str) else ""
            yield check, why_not


def _asked(result: Result) -> Result:
    """Return what the solver of a record was asked for, without what it answered."""
    return dataclasses.replace(
        result,
        status="unmeasured",
        reason="not solved yet",
        plan=None,
        cost=None,
        weights_digest="",
        training_time_s=None,
    )


def _run_solver(
    result: Result, trust: Collection[str], oracle: CostModel, timeout_s: float, stack: ExitStack
) -> RunningSolver | str:
    """Return the solver of a record at work, which the stack ends, or why it cannot be made."""
    name = result.made_from or result.solver
    if ":" in name and name not in trust:
        return f"the solver is '{name}': to import it, pass --trust {name}"
    try:
        (spec,) = check_solvers([SolverSpec(name, result.solver_settings, result.solver)])
        solver = RunningSolver(spec, oracle, timeout_s=timeout_s, isolate=CAN_FORK, max_bytes=MAX_BYTES)
        stack.callback(solver.close)
        solver.start()
        solver.wait_until_made()
    except (InputError, MissingDependencyError) as error:
        return f"the solver cannot be made here: {error}"
    return solver


def _oracle_of(file: Path, get_oracle: GetCost) -> tuple[CostModel | None, str]:
    """Return the oracle of a file's run, or why solving again would not show anything."""
    info = RunInfo.of(file)
    if info is None:
        return None, f"no {RUN_INFO} of {file} names the oracle"
    if info.time_limit_s is not None:
        return None, "with a time limit a solver need not make the same plan"
    oracle, why_not = get_oracle(info.oracle, info.oracle_settings)
    if oracle is None:
        return None, why_not
    if not oracle.deterministic:
        return None, f"the oracle '{info.oracle}' is measured: a solver need not make the same plan"
    return oracle, ""


def sampled(records: Sequence[StoredRecord], count: int) -> list[StoredRecord]:
    """Return so many records of each file: by hashes of suite, task, solver and seed, on any machine.

    Records of plans that took longer than two seconds of processor time are left out: a sample is for a quick look.
    """

    def digest(record: StoredRecord) -> str:
        return sha256(canonical_json([record.result.suite, *record.result.key]))

    taken = Counter[Path]()
    chosen = []
    quick = (record for record in records if (record.result.cpu_time_s or 0.0) <= _MOST_S)
    for record in sorted(quick, key=digest):
        taken[record.path] += 1
        if taken[record.path] <= count:
            chosen.append(record)
    return chosen


def _compare(result: Result, check: RecordCheck, again: Result) -> RecordCheck:
    """Return the check of a record with what solving again showed; what another plan costs is not said yet."""
    elsewhere = _made_elsewhere(result, again)
    other_weights = ""
    if result.weights_digest and result.weights_digest != again.weights_digest:
        at_hand = again.weights_digest[:12] or "none"
        other_weights = f"the weights of the record are {result.weights_digest[:12]}, those at hand are {at_hand}"
    if _failure_of(result) != _failure_of(again) or (result.plan is None) != (again.plan is None):
        if again.plan is None:
            outcome = f"no plan, {again.reason}"
        else:
            outcome = "a plan" if _failure_of(again) is None else f"an infeasible plan, {again.reason}"
        why = "; ".join(filter(None, [f"solved again: {outcome}, not as recorded", other_weights, elsewhere]))
        return dataclasses.replace(check, status="mismatch", reason=why)
    if other_weights:
        same = "the same plan" if _same_plan(result.plan, again.plan) else "another plan"
        return dataclasses.replace(check, status="mismatch", reason=f"solved again: {same}, but {other_weights}")
    if again.plan is None or result.plan is None:
        return dataclasses.replace(
            check, status="ok", reason=f"solved again: fails as recorded, {check.reason}", solved="same"
        )
    if _same_plan(result.plan, again.plan):
        return dataclasses.replace(check, reason=f"{check.reason}; solved again: the same plan", solved="same")
    if not elsewhere:
        why = "solved again: another plan, with the same processor, versions and source"
        return dataclasses.replace(check, status="mismatch", reason=why)
    return dataclasses.replace(check, reason=elsewhere, solved="other")


def _failure_of(result: Result) -> str | None:
    return result.status if result.status in ("infeasible", "error") else None


def _same_plan(one: ShardingPlan | None, other: ShardingPlan | None) -> bool:
    return one is not None and other is not None and one.digest == other.digest


def _made_elsewhere(result: Result, again: Result) -> str:
    """Say in what a record was made with others than are here: processor, kernels, versions, source; "" in nothing."""
    here = versions() | arithmetic()
    told = result.versions
    others = [
        f"{name} {told.get(name, 'not on record')}, here {here.get(name, 'none')}"
        for name in dict.fromkeys([*arithmetic(), *told, *here])
        if told.get(name) != here.get(name)
    ]
    if result.source_digest and again.source_digest not in ("", result.source_digest):
        others.append("the source of the solver has changed since")
    if result.commit and result.commit != commit():
        others.append(f"commit {result.commit[:12]}, here {commit()[:12] or 'none'}")
    return f"the record was made with others: {'; '.join(others)}" if others else ""


def _with_cost(
    check: RecordCheck, task: ShardingTask, stored: ShardingPlan, found: ShardingPlan, scorer: CostModel
) -> RecordCheck:
    """Add to a check what another plan costs, by its judge or, where that measures, by the oracle."""
    if equal_but_for_names(task, stored, found):
        outcome = "the same plan, equal devices in another order"
        return dataclasses.replace(check, reason=f"solved again: {outcome}; {check.reason}", solved="renamed")
    before, now = (answer.total_ms for answer in scorer.evaluate(task, [stored, found]))
    ratio = now / before if before > 0 else 1.0
    if abs(ratio - 1) <= EXACT:
        outcome = "another plan of the same cost"
    else:
        outcome = f"another plan, which costs {abs(ratio - 1):.2%} {'more' if ratio > 1 else 'less'} by {scorer.name}"
    return dataclasses.replace(check, reason=f"solved again: {outcome}; {check.reason}", solved_ratio=ratio)


def equal_but_for_names(task: ShardingTask, one: ShardingPlan, other: ShardingPlan) -> bool:
    """Say whether two plans put the same shards together, on devices that differ in their numbers alone.

    Where the rows and columns of a shard begin does not matter. Devices are equal that have the same memory, and the
    same samples of a batch, in one fast domain, or in domains of one device each.
    """

    def held(plan: ShardingPlan) -> Counter[Any]:
        shards: dict[int, list[tuple[str, int, int]]] = {device: [] for device in range(task.num_devices)}
        for shard in plan.shards:
            for device in shard.devices:
                shards[device].append((shard.table, shard.num_rows, shard.num_columns))
        return Counter((kinds[device], tuple(sorted(shards[device]))) for device in shards)

    topology = task.topology
    more = task.batch_size % task.num_devices  # these many devices have a sample more
    kinds = [
        (memory, device < more, device // topology.fast_domain_size if topology.fast_domain_size > 1 else 0)
        for device, memory in enumerate(task.capacity_bytes)
    ]
    return held(one) == held(other)
