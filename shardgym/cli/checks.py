"""list, check-solver, doctor: what there is, and whether it is as it should be."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable

import click
from tabulate import tabulate

from shardgym.cli.common import Command, OneOf, answer, json_option, parse_spec, print_json, terminal_width
from shardgym.evaluation.solver import GROUP, weights_that_ship
from shardgym.progress import log_to_stderr
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
    for row in rows:
        suites = shipped.get(str(row["solver"]))
        if suites is not None:
            row["weights for"] = ", ".join(suites)
    return rows


def _suite_rows() -> Rows:
    suites = [load_suite(name) for name in suite_names()]
    return [
        {"suite": s.name, "tasks": len(s), "judge": s.judge, "oracle": s.oracle, "description": s.description}
        for s in suites
    ]


def _env_rows() -> Rows:
    from shardgym.envs import ENV_IDS

    return [{"environment": env_id, "class": target} for env_id, target in ENV_IDS.items()]


def _pool_rows() -> Rows:
    pools = [load_pool(name) for name in pool_names()]
    return [
        {
            "pool": pool.name,
            "tables": len(pool.tables),
            "rows": sum(table.num_embeddings for table in pool.tables),
            "batch size": pool.batch_size,
        }
        for pool in pools
    ]


def _topology_rows() -> Rows:
    return [
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
    ]


LISTS: dict[str, Callable[[], Rows]] = {
    "suites": _suite_rows,
    "solvers": _solver_rows,
    "costs": lambda: _class_rows("cost", "shardgym.costs"),
    "envs": _env_rows,
    "pools": _pool_rows,
    "topologies": _topology_rows,
}


@click.command("list", cls=Command)
@click.argument("kind", type=OneOf("kind", LISTS), metavar="KIND")
@json_option
def list_names(kind: str, as_json: bool) -> int:
    """List what there is by name. KIND is suites, solvers, costs, envs, pools or topologies.

    Any name in these lists can be given where a command asks for one. Your own need no registration: solvers and costs
    are also taken as module:Class, suites and pools as files.
    """
    rows = LISTS[kind]()
    if as_json:
        print_json(rows)
    elif rows:
        widths = [None if key != "description" else max(30, terminal_width() - 50) for key in rows[0]]
        print(tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True, maxcolwidths=widths))
        if kind == "topologies":
            print("Of GPUs, these are data-sheet figures: what is priced with them is modelled, not measured.")
    else:
        print("none")
    return 0


@click.command("check-solver", cls=Command)
@click.argument("solver_name", metavar="SOLVER")
@json_option
def check_solver(solver_name: str, as_json: bool) -> int:
    """Check that a solver keeps the rules of the interface.

    SOLVER is NAME[,KEY=VALUE...], a registered name or module:Class.

    Valid plan, memory respected, same seed same plan, task not changed, time limit kept, tasks without a plan reported
    as such. Exit code 1 when any rule is broken.
    """
    from shardgym.evaluation.conformance import check_solver

    name, settings = parse_spec(solver_name)
    with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
        report = dataclasses.replace(check_solver(name, settings=settings, progress=not as_json), solver=solver_name)
    answer(as_json, report.to_dict(), report.table())
    return 0 if report.ok else 1


@click.command("doctor", cls=Command)
@json_option
def doctor(as_json: bool) -> int:
    """Say what this machine can measure.

    Cores, memory, GPUs, versions, whether torch and FBGEMM fit together, and which extras are missing. Exit code 1
    when FBGEMM kernels cannot be measured here; everything that does not measure works all the same.
    """
    from shardgym.cli.doctor import diagnose

    diagnosis = diagnose()
    answer(as_json, diagnosis.to_dict(), "\n".join(diagnosis.lines()))
    return 0 if diagnosis.ok else 1
