"""The search of NeuroShardPlus over columns, and over the tables that devices share beside them."""

import contextlib
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.packing import pack_units
from neuroshard.plus.choices import shared_for_room, shared_on_average
from neuroshard.plus.kinds import with_better_kinds
from neuroshard.plus.linear_model import levelled, linear_model, model_beside
from neuroshard.plus.local_search import Allocation, IteratedLocalSearch
from neuroshard.plus.nodes import Nodes
from neuroshard.plus.placement import constructed
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import Form, Shared, places_of
from neuroshard.shard_table import units_of
from shardgym.arrays import Ints
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.solver import Budget, Incumbent
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard

#: Choices of tables to share that are searched from, besides none.
_WAYS = 5

_value = operator.attrgetter("value")

#: Makes the plan of all groups from the shards of the first one.
InGroups = Callable[[Iterable[Shard]], ShardingPlan]


def examples_of(pricing: Pricing) -> list[Ints]:
    """Return units of placements constructed by the shards' times alone, as examples of devices in the search."""
    whole = [np.eye(pricing.shards.task.num_devices, 1, dtype=np.int64) * pricing.shards.units]
    return [placement.units for placement in constructed(linear_model(pricing, whole))]


@dataclass
class ExactSearch:
    """Searches over columns by exact prices, without shared tables and from the best choices of shared tables."""

    pricing: Pricing  #: pricing of the task without shared tables
    forms: Sequence[Sequence[Form]]  #: forms in which each table can be shared
    kicks: int | None  #: see `NeuroShardPlus`
    budget: Budget  #: time budget
    seed: int  #: seed of the kicks
    incumbent: Incumbent  #: best plan so far, updated with every plan
    in_groups: InGroups | None = None  #: makes the plan of all groups, for a search on the devices of one group

    def __post_init__(self) -> None:
        self._model = linear_model(self.pricing, examples_of(self.pricing))
        nodes = Nodes(self.pricing.shards.task, self.pricing.costs)
        self._repacked = functools.partial(nodes.packed_anew, search_beside=self._search_beside)

    @functools.cached_property
    def _by_columns(self) -> Allocation | None:
        return self._descended(self.pricing.shared)

    def columns_ms(self) -> float:
        """Return the cost of the plan that a descent over columns alone finds; infinite if they have no room."""
        return math.inf if self._by_columns is None else self._by_columns.total_ms

    def run(self) -> None:
        """Search until kicks are used up, or as long as there is time and they help."""
        descended = self._first_allocations()
        flipped = self._best_flipped(descended)
        best = self._best_packed(flipped, descended)
        # Kicks bring more to some plans than to others: those by columns alone and before packing are improved in any
        # case.
        different = dict.fromkeys((descended[0], flipped, best))
        starts = [(self._search_beside(one.pricing.shared), one) for one in different]
        # Costs without replicas are left out: there, levelled widths bring next to nothing for their time.
        if any(form.kind == "data_parallel" for forms in self.forms for form in forms):
            starts += self._levelled(best)
        kicked = [(search, search.kicked(search.sampled(allocation))) for search, allocation in starts]
        search, best = min(kicked, key=lambda end: end[1].value)
        search.kicked(best, on=True)

    def _first_allocations(self) -> list[Allocation]:
        """Return results of descents: by columns alone, beside the best choices of shared tables, and the incumbent's.

        If columns alone find no room, choices that make room follow. Raises `NoFeasiblePlanError` if none does.
        """
        known = self._given()  # before other plans replace it
        beside_known = [] if known is None else self._beside_shared_of(known)
        tried = [self._by_columns]
        ways = shared_on_average(self.pricing, self.forms, self.budget)
        tried += [self._descended(shared) for shared in ways[:_WAYS]]
        tried += beside_known
        if self._by_columns is None:
            for_room = shared_for_room(self.pricing, self.forms, self.budget)
            found = (allocation for shared in for_room if (allocation := self._descended(shared)) is not None)
            tried += itertools.islice(found, _WAYS)
        descended = [allocation for allocation in tried if allocation is not None]
        if not descended:
            pack_units(self.pricing.shards)  # says why there is no plan
        return descended

    def _beside_shared_of(self, plan: ShardingPlan) -> list[Allocation]:
        """Return the result of a descent from a plan beside its shared tables; nothing if it has none."""
        places = places_of(self.pricing.shards.task, plan, self.forms)
        shared = self.pricing.shared.changed([], places)
        units = units_of(self.pricing.shards, plan, shared.places) if places else None
        return [] if units is None else [self._search_beside(shared).descended([units])]

    def _best_flipped(self, descended: Sequence[Allocation]) -> Allocation:
        """Change the kinds of tables in every allocation, and return the best result.

        The first allocation also goes through rows alone and through replicas alone, which leads elsewhere.
        """
        by_rows = [[form for form in forms if form.kind != "data_parallel"] for forms in self.forms]
        replicas = [[form for form in forms if form.kind == "data_parallel"] for forms in self.forms]
        first = min((self._flipped(descended[0], forms) for forms in (by_rows, replicas)), key=_value)
        return min((self._flipped(one, self.forms) for one in (first, *descended[1:])), key=_value)

    def _best_packed(self, flipped: Allocation, descended: Sequence[Allocation]) -> Allocation:
        """Pack tables of single nodes anew, in the best allocation and in those that it came from; return the best."""
        best = flipped
        for some in ([flipped], descended):
            packed = [other for one in some if (other := self._repacked(one)) is not one]
            if packed:
                best = min(best, self._settled(min(packed, key=_value)), key=_value)
        return best

    def _levelled(self, best: Allocation) -> list[tuple[IteratedLocalSearch, Allocation]]:
        """Place columns anew by a levelled model; return its search and result, or nothing if that is no better.

        The model was fitted without shared tables; beside many, it may underestimate the price of width.
        """
        before = self._search_beside(best.pricing.shared)
        search = dataclasses.replace(before, model=levelled(before.model))
        if search.model.floor == before.model.floor or not search.model.units.any():
            return []
        other = search.descended([best.units, *search.starts()])
        return [(search, other)] if other.value < best.value else []

    def _flipped(self, allocation: Allocation, forms: Sequence[Sequence[Form]]) -> Allocation:
        return with_better_kinds(allocation, forms, self._search_beside)

    def _settled(self, packed: Allocation) -> Allocation:
        """Alternate between changes of one table at a time and packing, and return the result."""
        while True:
            best = self._flipped(packed, self.forms)
            packed = self._repacked(best)
            if packed is best:
                return best

    def _search_beside(self, shared: Shared) -> IteratedLocalSearch:
        """Return the search over the columns of the tables that are not shared."""
        pricing = self.pricing.beside(shared)
        rng = np.random.default_rng(self.seed)
        return IteratedLocalSearch(
            pricing, model_beside(self._model, pricing), self.kicks, self.budget, rng, self.found
        )

    def _descended(self, shared: Shared) -> Allocation | None:
        """Descend from constructed placements and the incumbent; return None if columns find no room."""
        search, shards = self._search_beside(shared), self.pricing.shards
        if len(shared.places) == len(shards.units):  # no columns are left to place
            return search.offer(np.zeros((shards.task.num_devices, len(shards.units)), dtype=np.int64))
        starts = search.starts()
        if not shared.places:
            given = self._given()
            units = None if given is None else units_of(shards, given)
            if units is not None:
                starts.append(units)
            elif not starts:
                with contextlib.suppress(NoFeasiblePlanError):
                    starts.append(pack_units(shards))
        return search.descended(starts) if starts else None

    def _given(self) -> ShardingPlan | None:
        """Return the incumbent if there is one for these devices."""
        return self.incumbent.plan() if self.incumbent.cost_ms < math.inf and self.in_groups is None else None

    def found(self, allocation: Allocation) -> None:
        """Offer the plan of an allocation."""

        def plan() -> ShardingPlan:
            of_devices = allocation.pricing.plan(allocation.units)
            return of_devices if self.in_groups is None else self.in_groups(of_devices.shards)

        self.incumbent.update(plan, allocation.total_ms)
