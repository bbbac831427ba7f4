"""A search over programs: candidates are solvers that a language model writes.

    python examples/evolve_solver.py --out results/evolved --rounds 20 --model 'my-model --no-stream'

The command of `--model` reads a prompt on standard input and writes Python on standard output. Every candidate works in
a process of its own, as all solvers do in a run, on tasks drawn from the train half of the table pool. What goes back
is a score, its cost over that of `lpt`, and one line on the bottleneck of its worst plan. At the end the best candidate
solves the hidden tasks, those of dlrm4-v2: nobody was told of them, and nothing was chosen by them.
"""

import argparse
import math
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import shardgym
from shardgym.costs.rendering.bottleneck import describe_bottleneck
from shardgym.evaluation import SolverSpec

#: Tasks of the kind of dlrm4-v2 from the half of the pool that no suite draws from.
DEVELOPMENT = """\
description: What candidates are told their score on.
judge: {cost: simulator, settings: {role: judge}}
oracle: simulator
tasks:
  kind: drawn
  seed: 7
  pool: synthetic-2021
  half: train
  scale: 8
  batch_size: 8192
  groups:
  - {name: development, count: 8, topology: cpu, num_devices: 4, num_tables: [6, 30], dims: [4, 8, 16, 32, 64, 128],
     max_total_bytes: 2013265920, fullness: 0.5}
"""
HIDDEN = "dlrm4-v2"
#: A task without a plan counts as this many times the cost of `lpt`.
FAILED = 2.0

PROMPT = """\
Write a Python module with a class Candidate that has solve(self, task, cost, seed=0) and returns a feasible
shardgym.ShardingPlan. It chooses on which of task.num_devices devices each table of task.tables lies; tables may be
cut by columns. task.table_bytes(table), task.capacity_bytes, table.num_embeddings, table.embedding_dim and
table.pooling_factor are there; cost.evaluate(task, [plan, ...])[i].total_ms is what plans take, the slowest device
counts. ShardingPlan.table_wise(task, {name: device}) makes a plan of whole tables; ShardingPlan.of(task, [Shard(name,
(0, table.num_embeddings), (first column, last column + 1), device), ...]) one of pieces, whose widths are multiples of
4; both classes are in shardgym. plan.validate(task) raises if a plan does not fit.
The score is the cost over that of longest processing time first; lower is better. Answer with the module alone.
"""


@dataclass(frozen=True)
class Attempt:
    """A candidate and what came of it: its score (infinite if it did not run), and a line to learn from."""

    number: int
    source: str
    score: float
    remark: str


def written(command: str, attempts: list[Attempt]) -> str:
    """Return the next program, which a command is asked for."""
    shown = {attempt.number: attempt for attempt in (*sorted(attempts, key=attrgetter("score"))[:2], *attempts[-1:])}
    parts = [PROMPT]
    parts += [f"Candidate {a.number}: {a.score:.3f}. {a.remark}\n\n{a.source}\n" for a in shown.values()]
    try:
        done = subprocess.run(shlex.split(command), input="\n".join(parts), capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"the model's command cannot be run: {error}")
    if done.returncode:
        sys.exit(f"the model's command ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    fenced = re.search(r"```(?:python)?\n(.*?)```", done.stdout, re.DOTALL | re.IGNORECASE)
    return fenced[1] if fenced else done.stdout


def attempt(number: int, source: str, out: Path) -> Attempt:
    """Run a candidate on the development tasks."""
    name = f"candidate_{number}"
    (out / f"{name}.py").write_text(source, encoding="utf-8")
    suite = shardgym.load_suite(str(out / "development.yaml"))
    try:
        score, remark = ratios(suite, f"{name}:Candidate", out / name)
    except shardgym.ShardGymError as error:  # no such class, or no Python
        score, remark = math.inf, str(error)
    return Attempt(number, source, score, remark)


def ratios(suite: shardgym.Suite, candidate: str, out: Path) -> tuple[float, str]:
    """Return the geometric mean of the candidate's costs over those of `lpt`, and a remark on its worst task."""
    spec = SolverSpec(candidate, label="candidate")
    results = shardgym.evaluate(suite, [spec, "lpt"], out=out, track="simulator", resume="all", timeout_s=60.0)
    by_task = {(result.task_index, result.solver): result for result in results}
    found = []
    for index in range(len(suite)):
        ours, base = by_task[index, "candidate"], by_task[index, "lpt"]
        if base.status != "ok" or base.cost is None:
            raise shardgym.ShardGymError(f"lpt has no plan for task {index}: {base.reason}")
        if ours.status != "ok" or ours.cost is None or ours.plan is None:
            found.append((FAILED, f"no plan for task {index}: {ours.reason}"))
        else:
            lines = describe_bottleneck(suite[index], ours.plan, ours.cost)
            ratio = ours.cost.total_ms / base.cost.total_ms
            found.append((ratio, f"Worst on task {index}, {ratio:.2f} times lpt: {'; '.join(lines[1:])}"))
    return math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found)), max(found)[1]


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of candidates and records")
    parser.add_argument("--rounds", type=int, default=10, help="candidates at most (default: %(default)s)")
    parser.add_argument("--model", required=True, help="command that writes candidates")
    options = parser.parse_args(arguments)
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / "development.yaml").write_text(DEVELOPMENT, encoding="utf-8")
    sys.path.insert(0, str(out))  # where processes of solvers look for candidates
    attempts: list[Attempt] = []
    for number in range(options.rounds):
        attempts.append(attempt(number, written(options.model, attempts), out))
        print(f"candidate {attempts[-1].number}: {attempts[-1].score:.3f}. {attempts[-1].remark}", flush=True)
    best = min(attempts, key=attrgetter("score"))
    if best.score >= FAILED:
        sys.exit("no candidate found plans")
    hidden, _ = ratios(shardgym.load_suite(HIDDEN), f"candidate_{best.number}:Candidate", out / "hidden")
    print(f"best: candidate {best.number}, {best.score:.3f} of lpt in development, {hidden:.3f} on {HIDDEN}")


if __name__ == "__main__":
    main()
