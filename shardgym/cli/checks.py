"""list and check-solver: what is available, and whether a solver follows the interface."""

import dataclasses
from collections.abc import Callable

import click
from tabulate import tabulate

from shardgym.cli.common import answer, aside, json_option, parse_spec, width
from shardgym.envs import ENV_IDS
from shardgym.evaluation.solver import GROUP, weights_that_ship
from shardgym.registry import registered
from shardgym.tables.pools import load_pool, pool_names
from shardgym.tasks.suites import load_suite, suite_names
from shardgym.tasks.topology import GIB, PRESETS, Topology

Rows = list[dict[str, object]]


def _class_rows(kind: str, group: str) -> Rows:
    """Return registered classes without importing them."""
    return [{kind: name, "class": target} for name, target in registered(group).items()]


def _solver_rows() -> Rows:
    """Return registered solvers; learned ones with the suites that weights of them ship for."""
    shipped = weights_that_ship()
    rows = _class_rows("solver", GROUP)
    return [row | {"weights for": ", ".join(shipped.get(str(row["solver"]), []))} for row in rows]


LISTS: dict[str, Callable[[], Rows]] = {
    "suites": lambda: [
        {"suite": s.name, "tasks": len(s), "judge": s.judge, "oracle": s.oracle, "description": s.description}
        for s in map(load_suite, suite_names())
    ],
    "solvers": _solver_rows,
    "costs": lambda: _class_rows("cost", "shardgym.costs"),
    "envs": lambda: [{"environment": env_id, "class": target} for env_id, target in ENV_IDS.items()],
    "pools": lambda: [
        {"pool": p.name, "tables": len(p), "rows": sum(t.num_embeddings for t in p), "batch size": p.batch_size}
        for p in map(load_pool, pool_names())
    ],
    "topologies": lambda: [
        {
            "topology": name,
            "device": values["device"],
            "GiB per device": f"{values['memory_bytes'] / GIB:g}",
            "devices per node": values.get("fast_domain_size", "all"),
            "links": values.get("interconnect", Topology.interconnect),
            "GB/s inside": f"{values.get('intra_bandwidth', Topology.intra_bandwidth) / 1e9:g}",
            "GB/s between": f"{values.get('inter_bandwidth', Topology.inter_bandwidth) / 1e9:g}",
        }
        for name, values in PRESETS.items()
    ],
}


@click.command("list")
@click.argument("kind", type=click.Choice([*LISTS]), metavar="KIND")
@json_option
def list_names(kind: str, as_json: bool) -> int:
    """List suites, solvers, costs, envs, pools or topologies.

    Commands take any of the names. Your own solvers and costs need no registration: give them as module:Class, and
    suites and pools as files.
    """
    rows = LISTS[kind]()
    widths = [None if key != "description" else max(30, width() - 50) for key in rows[0]]
    table = tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True, maxcolwidths=widths)
    if kind == "topologies":
        table += "\nFigures of GPUs are from data sheets: costs that use them are modelled, not measured."
    answer(as_json, rows, table)
    return 0


@click.command("check-solver")
@click.argument("solver_name", metavar="SOLVER")
@json_option
def check_solver(solver_name: str, as_json: bool) -> int:
    """Check that a solver follows the rules of the interface.

    SOLVER is NAME[,KEY=VALUE...], a registered name or module:Class. The rules: plans are valid and follow from the
    seed; the solver respects memory and time limits, leaves the task unchanged, and reports a task without a plan. The
    exit code is 1 if any rule is broken.
    """
    from shardgym.evaluation.conformance import check_solver

    name, settings = parse_spec(solver_name)
    with aside(as_json):
        report = dataclasses.replace(check_solver(name, settings=settings, progress=not as_json), solver=solver_name)
    answer(as_json, report.to_dict(), report.table())
    return 0 if report.ok else 1
