"""List what there is by name: suites, solvers, costs, envs or pools.

Any name in these lists can be given where a command asks for one. Your own need no registration: solvers and costs are
also taken as module:Class, suites and pools as files.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from tabulate import tabulate

from shardgym.cli.output import print_json, width
from shardgym.cli.parser import Parser, one_of

Rows = list[dict[str, object]]


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("kind", type=one_of("kind", LISTS), help=", ".join(LISTS))


def run(arguments: Namespace) -> int:
    """Print the list."""
    rows = LISTS[arguments.kind]()
    if arguments.json:
        print_json(rows)
    else:
        widths = [None if key != "description" else max(30, width() - 50) for key in rows[0]] if rows else None
        table = tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True, maxcolwidths=widths)
        print(table if rows else "none")
    return 0


def _suites() -> Rows:
    from shardgym.suites import load_suite, suite_names

    suites = [load_suite(name) for name in suite_names()]
    return [
        {"suite": s.name, "tasks": len(s), "judge": s.judge, "oracle": s.oracle, "description": s.description}
        for s in suites
    ]


def _entry_points(kind: str, group: str) -> Rows:
    from shardgym.registry import registered

    return [{kind: name, "class": target} for name, target in registered(group).items()]


def _envs() -> Rows:
    from shardgym.envs.registration import ENV_IDS

    return [{"environment": env_id, "class": target} for env_id, target in ENV_IDS.items()]


def _pools() -> Rows:
    from shardgym.pools import load_pool, pool_names

    pools = [load_pool(name) for name in pool_names()]
    return [
        {"pool": p.name, "tables": len(p.tables), "rows": sum(t.num_embeddings for t in p.tables),
         "batch size": p.batch_size}
        for p in pools
    ]  # fmt: skip


LISTS: dict[str, Callable[[], Rows]] = {
    "suites": _suites,
    "solvers": lambda: _entry_points("solver", "shardgym.solvers"),
    "costs": lambda: _entry_points("cost", "shardgym.costs"),
    "envs": _envs,
    "pools": _pools,
}
