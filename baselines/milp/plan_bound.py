"""A lower bound on all plans of a task, of any kinds, pieces and groups, in seconds for a thousand GPUs.

The bounds of `Program` hold for the kinds that it knows. This one holds for all plans that a cost prices: any
rectangles, replicas of whole tables, and groups of 2D parallelism. It is a linear program, without integers, over the
mean work of all devices, which the slowest device cannot undercut:

- Columns of a table are in pieces of whole rows, in pieces cut by rows over one fast domain or over all devices, or
  replicated. Pieces of whole rows cost as much as in the width with the cheapest columns. Other pieces have an unknown
  cut, may fit a cache, or be sorted in fewer passes. They cost as much as on devices without either limit
  (`AdditiveCosts.unlimited`).
- Outputs cost their mean time on the links that they must cross. Partial sums, replicas' gradients and weights of
  groups cost lines below the times of their collectives (`exchanges_of`).
- All tables fit into all devices' memory together.

Means miss what cannot be split. The program therefore tests time limits that no single piece may exceed either, which
matters because narrow pieces of a busy table repeat its ids. The bound is the smallest limit that the program does not
rule out. Each group size has its own program.
"""

import math
from typing import NamedTuple

import numpy as np

from baselines.milp.kinds import exchanges_of
from baselines.milp.linear_program import LinearProgram, Sum
from baselines.milp.places import SCALE
from neuroshard.plus.sharing import has_domains
from shardgym.arrays import Floats
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.links import COLUMNS, GROUP_BYTES, LOADS, group_of
from shardgym.costs.shard_keys import ShardKey
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.plans.shard import COLUMN_UNIT
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask, block_bytes

#: Columns that fill whole sectors of any device, whatever the precision.
_WHOLE_SECTORS = 32
#: Relative precision of the smallest time limit that is not ruled out.
_PRECISION = 1e-3
#: Of a bound, what rounding and errors of the solver may make it too high by, and more.
_SAFETY = 1e-6
#: Steps of the search, far more than it takes.
_MOST_STEPS = 60


def lower_bound_ms(task: ShardingTask, cost: CostModel) -> float:
    """Return a lower bound in ms on the cost of all feasible plans of a task.

    Args:
        task: a task of pooled tables, without host memory.
        cost: an additive cost that is bounded from below, such as `roofline` and `gpu`.

    Raises:
        InputError: the task or the cost is of another kind.
        NoFeasiblePlanError: the tables do not fit into groups of any size.
    """
    costs = cost.additive()
    if costs is None or not costs.bounded:
        raise InputError(f"cost '{cost.name}' has no lower bound: expected a bounded cost, such as roofline or gpu")
    if task.topology != task.topology.devices_alone or not all(table.is_pooled for table in task.tables):
        raise InputError("no bound is known for unpooled tables or host memory: expected a task without them")
    devices = task.num_devices
    sizes = {devices}
    if cost.replicas:
        # Groups of whole fast domains, or of equal parts of one, are priced alone.
        domain = task.topology.fast_domain_size
        sizes |= {n for n in range(2, devices) if devices % n == 0 and (n % domain == 0 or domain % n == 0)}
    found = math.inf
    for size in sorted(sizes, reverse=True):
        found = min(found, _GroupBound(task, costs, size, replicas=cost.replicas).least_ms(found))
    if found == math.inf:
        raise NoFeasiblePlanError("the tables are larger than the memory of all devices together: give more memory")
    return found * (1 - _SAFETY)


class _Column(NamedTuple):
    """Least time of a table's column on all devices of a group together, by the width of its piece."""

    ms: Floats  #: first and at last, shape (widths, 2)
    piece_ms: Floats  #: of the whole step, of the device that takes longest for a piece, shape (widths,)


class _GroupBound:
    """The bound of plans in groups of one size; of all devices without groups."""

    def __init__(self, task: ShardingTask, costs: AdditiveCosts, size: int, *, replicas: bool) -> None:
        self._task = task
        self._costs = costs
        self._with_replicas = replicas and task.num_devices > 1
        self._size = size
        self._groups = task.num_devices // size
        group = task if self._groups == 1 else group_of(task, size)
        self._exchanges = exchanges_of(group, costs)
        self._replica_line = exchanges_of(task, costs).replicas
        self._domain = group.topology.fast_domain_size if has_domains(group) else 0
        tables = task.tables
        #: Of each table with its optimiser state, and the gradients that its replicas exchange.
        self._bytes = [
            block_bytes(t.num_embeddings, t.embedding_dim, task.precision_of(t), task.optimizer_of(t)) for t in tables
        ]
        self._gradient_bytes = [
            t.num_embeddings * t.embedding_dim * ELEMENT_BYTES[task.precision_of(t)] for t in tables
        ]
        self._capacity = sum(task.capacity_bytes) / self._groups
        self._sync_ms = self._sync_ms_per_byte()

    def _sync_ms_per_byte(self) -> float:
        """Return the least time in ms to exchange a byte of a device's weights and states among groups."""
        if self._groups == 1:
            return 0.0
        most = max(self._task.capacity_bytes)
        loads = np.zeros((1, self._task.num_devices, LOADS))
        loads[..., GROUP_BYTES] = most
        return float(self._costs.replicas_ms(self._task, loads, self._groups).min()) / most

    def _describe(self) -> None:
        """Query the cost for the tables' times, which is nearly all of the work."""
        task, exchange, costs = self._task, self._exchanges, self._costs
        unlimited = costs.unlimited(task)
        served = 0 if self._groups == 1 else self._size
        widths = [list(range(COLUMN_UNIT, t.embedding_dim + 1, COLUMN_UNIT)) for t in task.tables]
        pieces = [
            ShardKey(t.name, t.num_embeddings, width, served)
            for t, of_table in zip(task.tables, widths, strict=True)
            for width in of_table
        ]
        whole_sectors = [-(-t.embedding_dim // _WHOLE_SECTORS) * _WHOLE_SECTORS for t in task.tables]
        wide = [
            ShardKey(t.name, t.num_embeddings, width, of)
            for of in (served, 1)
            for t, width in zip(task.tables, whole_sectors, strict=True)
        ]
        vectors = costs.vectors(costs.encode_keys(task, pieces))
        last = np.cumsum([len(of_table) for of_table in widths]) - 1
        typical = vectors[last].sum(axis=0)
        compute = exchange.compute.T
        limited_ms = np.maximum(costs.least_ms(vectors, typical), 0.0) @ compute
        uncut = unlimited.vectors(unlimited.encode_keys(task, pieces + wide))
        uncut_ms = np.maximum(unlimited.least_ms(uncut, typical), 0.0) @ compute
        counts = np.ones(1)
        self._fixed_ms = exchange.compute @ costs.operator_ms(vectors[:1, :-LOADS], counts)[0]
        fixed_ms = float(self._fixed_ms.sum())
        link = int(exchange.links.sent_ms.min(axis=1).argmax())
        latency_ms, sent_ms = float(exchange.links.latency_ms[link].min()), float(exchange.links.sent_ms[link].min())
        #: Columns of pooled output that a column of each table has: one for each of its features.
        self._outputs = vectors[last, -LOADS:][:, COLUMNS] / np.array([t.embedding_dim for t in task.tables])
        self._whole_rows: list[_Column] = []
        self._in_domain: list[_Column] = []
        start = 0
        for table, of_table in enumerate(widths):
            stop = start + len(of_table)
            columns = np.array(of_table, dtype=np.float64)
            outputs = columns * self._outputs[table]
            ms = limited_ms[start:stop]
            alone_ms = ms.sum(axis=1) + fixed_ms + 2 * (latency_ms + sent_ms * outputs)
            self._whole_rows.append(_Column(ms / columns[:, None], alone_ms))
            ms = uncut_ms[start:stop]
            inside_ms = exchange.nodes.latency_ms + (exchange.nodes.inside_ms + exchange.nodes.sent_ms) * outputs
            share_ms = ms.sum(axis=1) / max(self._domain, 1)
            self._in_domain.append(_Column(ms / columns[:, None], share_ms + fixed_ms + 2 * inside_ms))
            start = stop
        number = len(task.tables)
        per_column = uncut_ms[len(pieces) :] / np.tile(whole_sectors, 2)[:, None]
        #: Per column of each table, shape (T, 2): pieces cut in any way; and replicas, on each device.
        self._any_cut, self._replicas = per_column[:number], per_column[number:] if self._with_replicas else None
        #: What all tables take at least on the devices of a group together.
        self._least_compute_ms = float(
            sum(
                min(float(cut.sum()), float(copy.sum()) * self._size) * table.embedding_dim
                for table, cut, copy in zip(task.tables, per_column[:number], per_column[number:], strict=True)
            )
        )

    def least_ms(self, most_ms: float) -> float:
        """Return the bound, or anything from `most_ms` on where it is not less than that; infinite without plans."""
        if sum(self._bytes) > self._capacity:
            return math.inf
        # What groups and replicas exchange alone.
        low = sum(
            min(of_table * self._sync_ms / self._size, gradients * self._replica_line.unit_ms)
            for of_table, gradients in zip(self._bytes, self._gradient_bytes, strict=True)
        )
        if low >= most_ms:
            return low
        self._describe()
        low = self._least_within(math.inf)
        if low >= most_ms or low == math.inf:
            return low
        high = min(self._least_within(low), most_ms)
        for _ in range(_MOST_STEPS):
            if high <= low * (1 + _PRECISION):
                break
            middle = (low + high) / 2
            if self._least_within(middle) > middle:
                low = middle
            else:
                high = middle
        return low

    def _least_within(self, limit_ms: float) -> float:
        """Return a lower bound on plans that cost at most a limit; infinite if there are none."""
        task, exchange, size = self._task, self._exchanges, self._size
        unit = SCALE / max(self._least_compute_ms / size, 1e-6)
        program = LinearProgram()
        objective, *goals = (program.variable() for _ in range(3))
        #: Columns of whole rows, cut by rows over all devices, and inside of domains; whether there are any; replicas.
        whole = Sum()
        rows = Sum()
        domain = Sum()
        copies = Sum()
        any_whole, any_rows, any_domain, any_copy = (program.variable(1) for _ in range(4))
        compute = Sum(), Sum()
        memory = Sum()
        held = Sum()
        scale = SCALE / self._capacity
        for n, table in enumerate(task.tables):
            width = table.embedding_dim
            kinds: list[tuple[Sum, Floats, Sum, Sum]] = []
            for column, flag, loads in (
                (self._whole_rows[n], any_whole, whole),
                (self._in_domain[n], any_domain, domain),
            ):
                allowed = column.piece_ms <= limit_ms
                if allowed.any() and (flag is any_whole or self._domain):
                    # The least of both phases apart is no more than that of any width.
                    kinds.append((program.variable(1), column.ms[allowed].min(axis=0), flag, loads))
            if size > 1:
                kinds.append((program.variable(1), self._any_cut[n], any_rows, rows))
            for variable, ms, flag, loads in kinds:
                loads += variable * (width * float(self._outputs[n]))
                held += variable * (self._bytes[n] / size)
                memory += variable * (self._bytes[n] * scale)
                program.at_most(variable, flag)
                for phase, ms_of in enumerate(compute):
                    ms_of += variable * (float(ms[phase]) * width / size * unit)
            chosen = [variable for variable, *_ in kinds]
            if self._replicas is not None:
                copy = program.variable(1)
                chosen.append(copy)
                memory += copy * (self._bytes[n] * scale * size)
                copies += copy * float(self._gradient_bytes[n])
                program.at_most(copy, any_copy)
                for phase, ms_of in enumerate(compute):
                    ms_of += copy * (float(self._replicas[n, phase]) * width * unit)
            program.equal(Sum.of(chosen), 1)
        program.at_most(memory, self._capacity * scale)
        transfer = Sum()
        if size > 1:
            transfer += self._all_to_all(program, unit, whole, any_whole)
            transfer += any_rows * (exchange.rows.latency_ms * unit) + rows * exchange.rows.unit_ms * unit
        if self._domain:
            domains = size // self._domain
            column_ms = exchange.nodes.inside_ms / domains + exchange.nodes.received_ms * (1 - 1 / domains)
            transfer += domain * column_ms * unit + any_domain * (exchange.nodes.latency_ms * unit)
        # How many devices hold anything at least, if a plan takes no more than the limit; replicas are on all.
        full = sum(self._bytes) * self._groups / max(self._task.capacity_bytes)
        compute_ms = self._least_compute_ms * self._groups
        spare_ms = limit_ms - float(self._fixed_ms.sum())
        busy = compute_ms / spare_ms if spare_ms > 0 else self._task.num_devices
        used = min(max(full, busy, 1.0), self._task.num_devices) / task.num_devices
        for phase, goal in enumerate(goals):
            fixed = float(self._fixed_ms[phase]) * used * unit
            program.at_most(compute[phase] + transfer - goal, -fixed)
        line = self._replica_line
        replicas = copies * line.unit_ms * unit + any_copy * (line.latency_ms * unit)
        program.at_most(goals[0] + goals[1] + replicas + held * self._sync_ms * unit, objective)
        return program.minimise(objective).bound / unit

    def _all_to_all(self, program: LinearProgram, unit: float, columns: Sum, any_columns: Sum) -> Sum:
        """Return the devices' mean time for the all-to-all of so many columns, in units of a ms."""
        links = self._exchanges.links
        sizes = np.bincount(links.domains)
        all_to_all = program.variable()
        # On average over devices, others of the own domain have this many of all columns, and other domains.
        shares = (float(sizes.min()) - 1) / self._size, 1 - float(sizes.max()) / self._size
        for link, share in enumerate(shares):
            received_ms = float(links.received_ms[link].min()) * share
            latency_ms = float(links.latency_ms[link].min())
            program.at_most(columns * received_ms * unit + any_columns * (latency_ms * unit), all_to_all)
        return all_to_all
