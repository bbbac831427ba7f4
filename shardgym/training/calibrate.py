"""Fitting a calibration: complete steps of a fixed set of plans are measured here, and costs are brought to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.calibration import Agreement, Calibration, kinds_of_work
from shardgym.costs.link_model import StepWork, shipped_model
from shardgym.costs.links import COLUMNS, IDS, LOADS, SHARDS
from shardgym.costs.roofline import DEVICES
from shardgym.costs.roofline import compute_ms as roofline_ms
from shardgym.costs.simulator.features import Groups, distinct_rows, work
from shardgym.costs.simulator.sample_files import data_files, read_info, read_steps
from shardgym.costs.simulator.samples import StepSamples
from shardgym.costs.simulator.weights import find_weights, load_weights, networks_of
from shardgym.errors import InputError, MeasurementError
from shardgym.files import write_whole
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology
from shardgym.training.assess import kendall_tau, mape, predict_compute
from shardgym.training.collecting import collect
from shardgym.training.pace import robust_fit
from shardgym.training.priors import fit_lines, step_amounts

CALIBRATION = "calibration.json"
#: Agreement is shown of as many fits, each of which a part of the tasks was held out of.
_FOLDS = 3
#: Keeps factors near a constant where few plans tell kinds of work apart. Of 0.1 to 100, 30 and 100 erred least.
_RIDGE = 30.0
_LEAST_PLANS = 12
_LEAST_TO_RANK = 3


class _Plan(NamedTuple):
    """A measured plan: a task with batch and links, rows of its devices, which these are, and loads, (D, LOADS)."""

    task: ShardingTask
    rows: Ints
    devices: Ints
    loads: Floats


def calibrate(folder: Path, weights: Path | None = None, *, progress: bool = False) -> Calibration:
    """Measure what the folder lacks, fit, and write `calibration.json` there.

    Agreement is that of three fits, each of which a third of the tasks were held out of; what is written was fitted to
    all of them.

    Args:
        folder: keeps measurements; the same call goes on where it was stopped.
        weights: of the simulator; those that ship when None.
        progress: show progress on standard error.

    Raises:
        InputError: the weights are of kernels alone.
        MeasurementError: too few plans could be measured here.
    """
    oracle = load_weights(find_weights(weights, "oracle", None), "oracle")
    if oracle.lines is None:
        raise InputError("these weights are of kernels alone: a calibration takes weights that know complete steps")
    collect(folder, preset="calibration", progress=progress)
    steps = read_steps(folder)
    plans = _plans_of(steps)
    if len(plans) < _LEAST_PLANS:
        raise MeasurementError(f"{len(plans)} plans could be measured, a calibration takes {_LEAST_PLANS} at least")
    simulator = predict_compute(networks_of(oracle), steps.compute)
    roofline = _roofline(steps)
    kinds = _kinds(steps, simulator)
    tasks = np.array([name.rsplit("/", 1)[0] for name in steps.plan.tolist()])
    fold = np.unique(tasks, return_inverse=True)[1] % _FOLDS

    def fit(rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Return factors by kind of work, shape (6, 2); those of the roofline, shape (2,); and lines, shape (5, 4)."""
        measured = steps.compute.ms[rows]
        ratio = np.log(measured / simulator[rows])
        level = np.median(ratio, axis=0)
        factors = np.column_stack([robust_fit(kinds[rows], ratio[:, p] - level[p], _RIDGE) for p in (0, 1)])
        factors[0] += level
        return factors, np.median(measured / roofline[rows], axis=0), fit_lines(steps.take(rows))

    amounts = step_amounts(steps)
    fitted_simulator = np.empty_like(simulator)
    fitted_roofline = np.empty_like(roofline)
    fitted_other = np.empty_like(steps.parts_ms)
    for held_out in range(_FOLDS):
        factors, of_roofline, lines = fit(np.flatnonzero(fold != held_out))
        tested = fold == held_out
        fitted_simulator[tested] = (simulator * np.exp(kinds @ factors))[tested]
        fitted_roofline[tested] = (roofline * of_roofline)[tested]
        fitted_other[tested] = np.einsum("nla,la->nl", amounts[tested], lines)
    before = {
        "simulator": _agreement(steps, plans, simulator, np.einsum("nla,la->nl", amounts, oracle.lines)),
        "roofline": _agreement(steps, plans, roofline, np.zeros_like(fitted_other)),
    }
    after = {
        "simulator": _agreement(steps, plans, fitted_simulator, fitted_other),
        "roofline": _agreement(steps, plans, fitted_roofline, fitted_other),
    }
    factors, of_roofline, lines = fit(np.arange(len(steps)))
    calibration = Calibration(
        hardware=read_info(data_files(folder, "steps")[0]).hardware,
        weights=oracle.version,
        forward=tuple(factors[:, 0].tolist()),
        backward=tuple(factors[:, 1].tolist()),
        roofline=(float(of_roofline[0]), float(of_roofline[1])),
        lines=tuple(tuple(line) for line in lines.tolist()),
        plans=len(plans),
        before=before,
        after=after,
    )
    write_whole(folder / CALIBRATION, calibration.to_json(indent=1) + "\n")
    return calibration


def _roofline(steps: StepSamples) -> Floats:
    """Return forward and backward compute by the roofline of a CPU core, shape (N, 2)."""
    core = DEVICES["cpu-core"]
    shards = steps.compute.shards
    both = roofline_ms(
        core,
        batch_size=shards.batch,
        ids=shards.batch * shards.pooling,
        distinct=distinct_rows(shards),
        width_bytes=shards.columns * shards.element_bytes,
        output_bytes=shards.columns * shards.element_bytes,
        state_bytes=4 * (shards.state_per_weight * shards.columns + shards.state_per_row),
    )
    starts = Groups(steps.compute.counts).starts
    summed: Floats = np.add.reduceat(np.column_stack(both), starts, axis=0)
    summed += (core.forward_ms, core.backward_ms)
    return summed


def _kinds(steps: StepSamples, ms: Floats) -> Floats:
    starts = Groups(steps.compute.counts).starts
    return kinds_of_work(np.add.reduceat(work(steps.compute.shards), starts, axis=0), ms)


def _plans_of(steps: StepSamples) -> list[_Plan]:
    """Return the plans of which all devices that hold something were measured."""
    groups = Groups(steps.compute.counts)
    shards = steps.compute.shards
    loads = np.zeros((len(groups.counts), LOADS))
    loads[:, IDS] = np.add.reduceat(shards.pooling, groups.starts)
    loads[:, COLUMNS] = np.add.reduceat(shards.columns, groups.starts)
    loads[:, SHARDS] = groups.counts
    found = []
    for name in dict.fromkeys(steps.plan.tolist()):
        rows = np.flatnonzero(steps.plan == name)
        first = rows[0]
        devices = int(steps.num_devices[first])
        of_all = np.zeros((devices, LOADS))
        of_all[steps.device[rows]] = loads[rows]
        if of_all[:, SHARDS].sum() == steps.plan_shards[first]:
            task = ShardingTask(
                (EmbeddingTable("any", 1, 4),), Topology.preset("cpu", devices),
                int(shards.batch[groups.starts[first]]), precision=steps.compute.precision[first],
            )  # fmt: skip
            found.append(_Plan(task, rows, steps.device[rows], of_all))
    return found


def _agreement(steps: StepSamples, plans: Sequence[_Plan], ms: Floats, other: Floats) -> Agreement:
    """Compare predicted compute of all rows, (N, 2), and steps with other work, (N, 5), with measurements."""
    rows = np.concatenate([plan.rows for plan in plans])
    predicted = np.array([_total_ms(plan, ms, other) for plan in plans])
    measured = np.array([_total_ms(plan, steps.compute.ms, steps.parts_ms) for plan in plans])
    tasks = np.array([steps.plan[plan.rows[0]].rsplit("/", 1)[0] for plan in plans])
    taus = [
        kendall_tau(predicted[tasks == task], measured[tasks == task])
        for task in np.unique(tasks)
        if (tasks == task).sum() >= _LEAST_TO_RANK
    ]
    return Agreement(
        compute_error=mape(ms[rows].sum(axis=1), steps.compute.ms[rows].sum(axis=1)),
        total_error=mape(predicted, measured),
        level=float(predicted.mean() / measured.mean()),
        kendall_tau=float(np.mean(taus)),
    )


def _total_ms(plan: _Plan, ms: Floats, other: Floats) -> float:
    """Return what the slowest device takes, exchanges by the link model."""
    parts = np.zeros((len(plan.loads), 7))
    parts[plan.devices] = np.column_stack([other[plan.rows], ms[plan.rows]])
    pack_ids, count_ids, group_ids, join_outputs, pack_gradients, forward, backward = parts.T
    work_ms = StepWork(pack_ids, count_ids, group_ids, forward, join_outputs, pack_gradients, backward)
    exchanges = shipped_model().step_times(plan.task, work_ms, plan.loads)
    return float((forward + backward + sum(exchanges)).max())
