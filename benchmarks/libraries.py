"""Libraries of reinforcement learning on native environments: steps per second of training, and what they reach.

    python benchmarks/libraries.py [--seconds 120] [--seed 0] [--examples rllib_ppo]
        [--out results/libraries] [--json] [--page docs/environments.md]

Every script in examples/ trains ColumnWise in a process of its own, by default for two minutes of processor time, with
the same network, tasks and rewards, and solves dlrm4-v2 by the simulator. Steps are those of the environments over the
processor time of playing and learning together, which neighbours on a shared core disturb less than the clock. A ratio
is the geometric mean of costs over those of `lookahead_columns`, which learns nothing. What is in the folder already is
not run again. `tox -e libraries` installs the libraries and runs this.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tabulate import tabulate

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from fill_pages import fill

ROOT = Path(__file__).parents[1]

EXAMPLES = ("cleanrl_ppo", "maskable_ppo", "rllib_ppo")


def main() -> int:
    """Run the benchmark and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="of processor time for training (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", default=",".join(EXAMPLES), help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/libraries"), help="folder of records (%(default)s)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", type=Path, help="whose block 'libraries' gets the table")
    arguments = parser.parse_args()
    names = arguments.examples.split(",")
    unknown = [name for name in names if name not in EXAMPLES]
    if unknown:
        parser.error(f"--examples: there is no '{unknown[0]}', expected some of {','.join(EXAMPLES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    records = {}
    for name in names:
        file = arguments.out / f"{name}.json"
        if not file.is_file():
            command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--out", str(file)]
            command += ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed)]
            code = subprocess.run(command, check=False).returncode
            if code:
                print(
                    f"examples/{name}.py ended with code {code}; its library: see the head of the file", file=sys.stderr
                )
                return 1
        records[name] = json.loads(file.read_text())
    rows = [row(name, record) for name, record in records.items()]
    if arguments.page:
        fill(arguments.page, "libraries", rows)
    print(json.dumps(rows, indent=1) if arguments.json else tabulate(rows, headers="keys", disable_numparse=True))
    return 0


def row(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the table; `record` is what an example writes."""
    shown = {
        "script": f"examples/{name}.py",
        "library": f"{record['library']} {record['version']}",
        "steps": f"{record['steps']:,}",
        "steps/CPU s": f"{record['steps'] / record['seconds']:,.0f}",
    }
    for samples, found in record["over_lookahead"].items():
        failed = f", {found['failed']} failed" if found["failed"] else ""
        shown[f"over lookahead, best of {samples}"] = f"{found['ratio']:.3f}{failed}"
    return shown


if __name__ == "__main__":
    sys.exit(main())
