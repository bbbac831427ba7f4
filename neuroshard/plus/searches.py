"""The search of NeuroShardPlus from plan to plan: over columns, and over what devices share beside them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from neuroshard.packing import pack_units
from neuroshard.plus.choices import shared_for_room, shared_on_average
from neuroshard.plus.kinds import with_better_kinds
from neuroshard.plus.linear_model import LinearModel, levelled, linear_model, model_beside
from neuroshard.plus.local_search import Allocation, IteratedLocalSearch
from neuroshard.plus.nodes import Nodes
from neuroshard.plus.placement import constructed
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import Form, Shared, places_of
from neuroshard.shard_table import ShardTable, units_of
from shardgym.arrays import Ints
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.incumbent import Budget, Incumbent
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard

#: Choices of tables to share that are searched from, besides none.
_WAYS = 5

#: Makes the plan of all groups from the shards of the first one.
InGroups = Callable[[Iterable[Shard]], ShardingPlan]


def examples_of(pricing: Pricing) -> list[Ints]:
    """Return units of constructed placements, by what shards take alone: devices such as the search will see."""
    whole = [np.eye(pricing.shards.task.num_devices, 1, dtype=np.int64) * pricing.shards.units]
    return [placement.units for placement in constructed(linear_model(pricing, whole))]


def starts_of(
    search: IteratedLocalSearch, model: LinearModel, shards: ShardTable, incumbent: Incumbent | None
) -> list[Ints]:
    """Return what constructed placements lead to, and the incumbent if there is one; a packing where there is neither.

    Raises:
        NoFeasiblePlanError: no packing was found, or none was looked for, as devices share tables.
    """
    starts = search.starts(model)
    if search.pricing.shared.places:
        if not starts:
            raise NoFeasiblePlanError("columns find no room beside the tables that devices share")
        return starts
    given = units_of(shards, incumbent.plan()) if incumbent is not None and incumbent.cost_ms < math.inf else None
    if given is not None:
        starts.append(given)
    return starts or [pack_units(shards)]


class ExactSearch:
    """Searches over columns by exact prices: where nothing is shared, and from what seems best to share.

    Args:
        pricing: of the task, where nothing is shared.
        forms: in which tables can be shared.
        kicks: of the search, see `NeuroShardPlus`.
        budget: of time.
        seed: of the kicks.
        incumbent: is told of every plan.
        in_groups: of a search on the devices of one group, makes the plan of all groups; None for all devices.
    """

    def __init__(
        self, pricing: Pricing, forms: Sequence[Sequence[Form]], kicks: int | None, budget: Budget, seed: int,
        incumbent: Incumbent, in_groups: InGroups | None = None,
    ) -> None:  # fmt: skip
        self._pricing = pricing
        self._forms = forms
        self._kicks = kicks
        self._budget = budget
        self._seed = seed
        self._incumbent = incumbent
        self._in_groups = in_groups
        self._model = linear_model(pricing, examples_of(pricing))
        self._nodes = Nodes(pricing.shards.task, pricing.costs)

    @functools.cached_property
    def _by_columns(self) -> Allocation | None:
        return self._descended(self._pricing.shared)

    def columns_ms(self) -> float:
        """Return what the plan takes that a descent by columns alone leads to; infinite where they find no room.

        Raises:
            OutOfTime: the budget is spent.
        """
        return math.inf if self._by_columns is None else self._by_columns.total_ms

    def run(self) -> None:
        """Search until kicks are used up, or for as long as there is time and they bring anything.

        Raises:
            OutOfTime: the budget is spent.
            NoFeasiblePlanError: no packing was found.
        """
        given = self._given()
        tried = [self._by_columns]
        ways = shared_on_average(self._pricing, self._forms, self._budget)
        tried += [self._descended(shared) for shared in ways[:_WAYS]]
        tried += given
        if self._by_columns is None:
            for_room = shared_for_room(self._pricing, self._forms, self._budget)
            found = (allocation for shared in for_room if (allocation := self._descended(shared)) is not None)
            tried += itertools.islice(found, _WAYS)
        descended = [allocation for allocation in tried if allocation is not None]
        if not descended:
            pack_units(self._pricing.shards)  # says why there is no plan
        # Step by step, rows and replicas lead elsewhere than both together.
        by_rows = [[form for form in forms if form.kind != "data_parallel"] for forms in self._forms]
        replicas = [[form for form in forms if form.kind == "data_parallel"] for forms in self._forms]
        best = min((self._flipped(descended[0], forms) for forms in (by_rows, replicas)), key=lambda one: one.value)
        flipped = min((self._flipped(one, self._forms) for one in (best, *descended[1:])), key=lambda one: one.value)
        # Tables of single nodes are packed anew in what changes led to, and in what they started from.
        best = flipped
        for some in ([flipped], descended):
            packed = [other for one in some if (other := self._packed(one)) is not one]
            if packed:
                best = min(best, self._settled(min(packed, key=lambda one: one.value)), key=lambda one: one.value)
        # Kicks bring more to some plans than to others: those by columns alone and before packing are improved in any
        # case.
        starts = [(self._model_of(one), one) for one in dict.fromkeys((descended[0], flipped, best))]
        # Costs without replicas are left out: there, levelled widths bring next to nothing for their time.
        if any(map(len, replicas)):
            starts += self._levelled(best)
        kicked = []
        for model, allocation in starts:
            search = self._search_beside(allocation.pricing.shared)
            kicked.append((search, model, search.kicked(model, search.sampled(allocation))))
        search, model, best = min(kicked, key=lambda end: end[2].value)
        search.kicked_on(model, best)

    def _model_of(self, allocation: Allocation) -> LinearModel:
        return model_beside(self._model, allocation.pricing)

    def _levelled(self, best: Allocation) -> list[tuple[LinearModel, Allocation]]:
        """Return what placing columns anew with widths levelled leads to, with its model; nothing if that is no better.

        The shared tables stay. The model was fitted where nothing is shared: beside many shared tables it may take no
        width for too much, and then only several cuts at once make all devices equally wide.
        """
        before = self._model_of(best)
        model = levelled(before)
        if model.floor == before.floor or not model.units.any():
            return []
        search = self._search_beside(best.pricing.shared)
        other = search.descended(model, [best.units, *search.starts(model)])
        return [(model, other)] if other.value < best.value else []

    def _flipped(self, allocation: Allocation, forms: Sequence[Sequence[Form]]) -> Allocation:
        return with_better_kinds(allocation, forms, self._model, self._search_beside)

    def _packed(self, allocation: Allocation) -> Allocation:
        return self._nodes.packed_anew(allocation, self._model, self._search_beside)

    def _settled(self, packed: Allocation) -> Allocation:
        """Return what changes of one table at a time and packing anew lead to in turns."""
        while True:
            best = self._flipped(packed, self._forms)
            packed = self._packed(best)
            if packed is best:
                return best

    def _search_beside(self, shared: Shared) -> IteratedLocalSearch:
        """Return the search over the columns of the tables that are not shared."""
        rng = np.random.default_rng(self._seed)
        return IteratedLocalSearch(self._pricing.beside(shared), self._kicks, self._budget, rng, self.found)

    def _descended(self, shared: Shared) -> Allocation | None:
        """Return what a descent leads to; None where columns find no room."""
        search = self._search_beside(shared)
        model = model_beside(self._model, search.pricing)
        if len(shared.places) == len(model.units):  # no columns are left to place
            return search.offer(np.zeros((len(model.memory), len(model.units)), dtype=np.int64))
        try:
            given = self._incumbent if self._in_groups is None else None
            return search.descended(model, starts_of(search, model, self._pricing.shards, given))
        except NoFeasiblePlanError:
            return None

    def _given(self) -> list[Allocation]:
        """Return the incumbent, if devices share tables in it."""
        if self._incumbent.cost_ms == math.inf or self._in_groups is not None:
            return []
        shards = self._pricing.shards
        plan = self._incumbent.plan()
        places = places_of(shards.task, plan, self._forms)
        shared = self._pricing.shared.changed([], places)
        units = units_of(shards, plan, shared.places) if places else None
        if units is None:
            return []
        search = self._search_beside(shared)
        return [search.descended(model_beside(self._model, search.pricing), [units])]

    def found(self, allocation: Allocation) -> None:
        """Offer the plan of an allocation."""

        def plan() -> ShardingPlan:
            of_devices = allocation.pricing.plan(allocation.units)
            return of_devices if self._in_groups is None else self._in_groups(of_devices.shards)

        self._incumbent.update(plan, allocation.total_ms)
