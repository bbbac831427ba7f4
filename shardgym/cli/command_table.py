"""The commands: name, module and one line each. Modules are imported when their command runs."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """One command.

    Attributes:
        name: one or two words.
        module: has `configure(parser)` and `run(arguments) -> exit code`; its docstring is the manual.
        summary: one line for the overview.
    """

    name: str
    module: str
    summary: str


def _command(name: str, module: str, summary: str) -> tuple[str, Command]:
    return name, Command(name, f"shardgym.cli.commands.{module}", summary)


COMMANDS: dict[str, Command] = dict([
    _command("list", "list_names", "what there is: suites, solvers, costs, envs, pools"),
    _command("run", "run", "solvers on a suite, scored by a judge, one record per plan, ranked at the end"),
    _command("solve", "solve", "one plan for one task"),
    _command("measure", "measure", "the cost of plans for one task"),
    _command("plan show", "plan_show", "devices, memory and cost of a plan, drawn in the terminal"),
    _command("plan diff", "plan_diff", "what differs between two plans for the same task"),
    _command("task make", "task_make", "a task from your own tables and machine"),
    _command("verify", "verify", "score stored plans again and compare"),
    _command("leaderboard", "leaderboard", "ranked tables from stored records"),
    _command("check-solver", "check_solver", "whether a solver keeps the rules of the interface"),
    _command("collect", "collect", "measured shard sets and exchanges: what simulators are trained on"),
    _command("pool check", "pool_check", "the synthetic pool against the published statistics"),
    _command("pretrain", "pretrain", "train the simulator on measured samples"),
    _command("doctor", "doctor", "what this machine can measure, versions, missing extras"),
])  # fmt: skip


def overview(group: str = "") -> str:
    """Return the list of commands, or those of a group such as "plan"."""
    chosen = [c for c in COMMANDS.values() if c.name == group or c.name.startswith(f"{group} ".lstrip())]
    lines = [f"  {command.name:<14}{command.summary}" for command in chosen]
    return "\n".join([
        f"usage: shardgym {group or 'COMMAND'} ...",
        "",
        "Benchmark for embedding-table sharding, measured with real kernels.",
        "",
        *lines,
        "",
        "'shardgym COMMAND --help' explains a command. Every command takes --json.",
        "Exit codes: 0 done, 1 a result failed, 2 bad usage or input, 130 interrupted.",
    ])  # fmt: skip
