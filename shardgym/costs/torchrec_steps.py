"""Costs of plans as TorchRec runs them: those of a cost model, with the permutation of outputs where columns are cut.

The columns of a table have to be side by side in the output of `ShardedEmbeddingBagCollection`. Where pieces of a table
arrive from several ranks, other tables lie between them. TorchRec then copies the outputs of all tables that the
all-to-all of the collection carries into another order, and copies their gradients on the way back
(`CwPooledEmbeddingSharding.create_output_dist`). One table that is cut is enough.
"""

import dataclasses
from collections.abc import Sequence

from shardgym.costs.base import CostModel
from shardgym.costs.calibrated import CalibratedCost
from shardgym.costs.devices import DEVICES
from shardgym.costs.links import samples_per_device
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ELEMENT_BYTES, FusedGroup, ShardingTask

_EXCHANGES = [PHASES.index("forward_comm"), PHASES.index("backward_comm")]


def step_costs(cost: CostModel, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
    """Return the costs of plans of one task; both exchanges include the permutation of outputs or gradients.

    A permutation reads and writes each byte at `DeviceConstants.update_bandwidth`, because its accesses are scattered.
    On a core that makes 3.3e9 bytes of outputs per second; measured on cpu-amd-family25-model17 were 4.0e9 to 5.3e9
    alone (6.8 to 33 MB) and 2.5e9 in steps. On GPUs it is the memory's bandwidth, without a measurement. The cost
    `torchrec_rating` stays as it is.
    """
    answers = cost.evaluate(task, plans)
    if cost.name == "torchrec_rating" or task.topology.device not in DEVICES:
        return answers
    level = cost.calibration.exchange if isinstance(cost, CalibratedCost) else 1.0
    samples = samples_per_device(task.batch_size, task.num_devices)
    bandwidth = DEVICES[task.topology.device].update_bandwidth
    column_ms = level * 2e3 * samples * ELEMENT_BYTES[task.precision] / bandwidth
    found = []
    for plan, answer in zip(plans, answers, strict=True):
        columns = permuted_columns(plan, task) if answer.feasible else 0
        if columns:
            per_device = answer.per_device.copy()
            per_device[:, _EXCHANGES] += columns * column_ms[:, None]
            answer = dataclasses.replace(answer, per_device=per_device)
        found.append(answer)
    return found


def permuted_columns(plan: ShardingPlan, task: ShardingTask) -> int:
    """Return how many columns of a sample's output are permuted: none where the pieces of each table arrive in order.

    Pieces arrive by rank, by fused operator of a rank, and by table, each with all features of its table. Grids, which
    are also cut by rows, have their own exchange. Unpooled tables are not permuted.
    """
    arriving: dict[tuple[str, int], list[tuple[int, FusedGroup, int, tuple[int, int], int]]] = {}
    for number, table in enumerate(task.tables):
        shards = plan.of_table(table.name)
        if not table.is_pooled or shards[0].is_replicated(task):
            continue
        devices = {shard.columns: shard.devices[0] for shard in reversed(shards)}
        rows_over = len(shards) // len(devices) if shards[0].num_rows < table.num_embeddings else 0
        group = task.fused_group_of(table)
        collection = table.name.rpartition(".")[0]
        arriving.setdefault((collection, rows_over), []).extend(
            (device, group, number, columns, feature)
            for columns, device in devices.items()
            for feature in range(table.num_features)
        )
    total = 0
    for pieces in arriving.values():
        first = {(device, group): number for device, group, number, *_ in reversed(pieces)}
        pieces.sort(key=lambda piece: (piece[0], first[piece[:2]], piece[2:]))
        order = [(number, feature, columns) for _, _, number, columns, feature in pieces]
        place = {entry[:2]: n for n, entry in reversed([*enumerate(order)])}
        if order != sorted(order, key=lambda entry: (place[entry[:2]], entry[2])):
            total += sum(stop - start for _, _, (start, stop) in order)
    return total
