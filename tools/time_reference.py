"""Time the work that paces are relative to, and write `shardgym/costs/fbgemm/pace.json`.

    python tools/time_reference.py [--repeats N]

The file belongs to the machine whose measurements the shipped simulator was trained on, on a day when nothing else ran:
its pace is 1. Two, four and eight devices are timed in turns, by new processes each time.
"""

import argparse
import contextlib
from pathlib import Path

import numpy as np

from shardgym.costs.fbgemm import pace
from shardgym.costs.fbgemm.workers import step_ranks
from shardgym.files import write_whole
from shardgym.machine import cpu_tag, utc_now

DEVICES = (2, 4, 8)
_TIMEOUT_S = 120.0


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=4, help="runs of each number of devices [%(default)s]")
    repeats = parser.parse_args().repeats
    logs_ms = []
    for devices in DEVICES * repeats:
        with contextlib.closing(step_ranks(devices, "cpu", _TIMEOUT_S, devices)) as group:
            group.start()
            logs_ms.append(np.log(pace.time_reference(group, devices)))
        print(f"{devices} devices: {np.exp(logs_ms[-1].mean()):.2f} ms in the geometric mean", flush=True)
    found = np.exp(np.mean(logs_ms, axis=0))
    reference = pace.Reference(tuple(np.round(found, 3).tolist()), cpu_tag(), utc_now())
    path = Path(pace.__file__).with_name("pace.json")
    write_whole(path, reference.to_json(indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
