"""Libraries of reinforcement learning on native environments: steps per second of training, and what they reach.

    python benchmarks/libraries.py [--examples maskable_ppo] [--out results/libraries] [--page benchmarks/README.md]

Every script in examples/ trains ColumnWise in a process of its own, for two minutes of processor time, with
the same network, tasks and rewards, and solves dlrm4-v2 by the simulator. Steps are those of the environments over the
processor time of playing and learning together, which neighbours on a shared core disturb less than the clock. A ratio
is the geometric mean of costs over those of `lookahead_columns`, which learns nothing. Results that the folder already
has are not run again. `tox -e libraries` runs this.
"""

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

EXAMPLES = ("cleanrl_ppo", "maskable_ppo")


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=EXAMPLES, help="(all)")
    parser.add_argument("--out", type=Path, default=Path("results/libraries"), help="folder of records (%(default)s)")
    parser.add_argument("--page", type=Path, help="Markdown page whose block 'libraries' is filled")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    records = {}
    for name in arguments.examples:
        file = arguments.out / f"{name}.json"
        if not file.is_file():  # a library that is missing says so
            subprocess.run([sys.executable, str(ROOT / "examples" / f"{name}.py"), "--out", str(file)], check=True)
        records[name] = json.loads(file.read_text())
    rows = [row(name, record) for name, record in records.items()]
    if arguments.page:
        fill(arguments.page, "libraries", rows)
    print(tabulate(rows, headers="keys", disable_numparse=True))


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
    main()
