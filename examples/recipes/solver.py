"""A solver: copy this file, rename the class, put your idea into `solve`.

    shardgym check-solver solver:LongestProcessingTime
    shardgym run --suite quick-v2 --cost roofline --solver solver:LongestProcessingTime --out results/mine

`solver` is the name of the file without `.py`; the commands find it in the folder in which they run.
"""

import dataclasses

from shardgym import CostModel, NoFeasiblePlanError, ShardingPlan, ShardingTask


class LongestProcessingTime:
    """Tables by what they compute alone, longest first, each to the device that has computed least so far.

    The rule is known as LPT (Graham, 1969). The cost model evaluates each table once.

    Args:
        headroom: share of every device's memory that stays free.
    """

    def __init__(self, headroom: float = 0.0) -> None:
        self.headroom = headroom

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:  # noqa: ARG002
        """Return a table-wise plan; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: a table no longer fits on any device.
            InfeasiblePlanError: the plan breaks another rule, such as a width that FBGEMM cannot take.
        """
        alone_ms = {table.name: self._alone_ms(task, cost, table.name) for table in task.tables}
        room = [memory * (1 - self.headroom) for memory in task.capacity_bytes]
        busy_ms = [0.0] * task.num_devices
        device_of = {}
        for table in sorted(task.tables, key=lambda table: alone_ms[table.name], reverse=True):
            size = task.table_bytes(table)
            fitting = [device for device in range(task.num_devices) if room[device] >= size]
            if not fitting:
                raise NoFeasiblePlanError(f"table '{table.name}' of {size} bytes no longer fits on any device")
            device = min(fitting, key=lambda device: busy_ms[device])
            device_of[table.name] = device
            room[device] -= size
            busy_ms[device] += alone_ms[table.name]
        plan = ShardingPlan.table_wise(task, device_of)
        plan.validate(task)
        return plan

    def _alone_ms(self, task: ShardingTask, cost: CostModel, name: str) -> float:
        """Ask what one table computes on a device of its own, in ms."""
        alone = dataclasses.replace(task, tables=(task.table(name),), name="")
        plan = ShardingPlan.table_wise(alone, {name: 0})
        phases_ms = cost.evaluate(alone, [plan])[0].per_device[0]
        return float(phases_ms[1] + phases_ms[4])  # forward and backward compute
