"""Fit the constants of the analytic cost to what `shardgym collect` measured on a device.

    python studies/roofline_constants/run.py DATA --start NAME [--json]

Minimises relative errors of forward and backward times over the shard sets of role "oracle" in DATA, starting from the
constants that `shardgym/costs/roofline.py` has under NAME, and prints the new ones next to errors on the test role's
sets, of tables that the fit has not seen. Where DATA has a `device.json`, its copy bandwidth is the memory bandwidth.
`access_bytes` is not fitted: it is the device's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.collection.run import DEVICE
from shardgym.costs.fbgemm.jobs import DeviceFacts
from shardgym.costs.roofline import DeviceConstants, compute_ms, device_constants
from shardgym.costs.simulator.features import distinct_rows
from shardgym.costs.simulator.sample_files import read_compute
from shardgym.costs.simulator.samples import ComputeSamples, with_role
from shardgym.errors import ShardGymError, import_extra

#: What is fitted. Bandwidths and sizes are as positive as times, so all are fitted as logarithms.
FITTED = (
    "memory_bandwidth", "update_bandwidth", "cache_bytes", "cache_bandwidth", "row_access_ns", "lookup_ns",
    "forward_ms", "backward_ms", "table_ms",
)  # fmt: skip
#: Where a constant of 0 starts.
_LEAST = 1e-3
#: A constant that is fitted below this has become 0.
_NOTHING = 1e-4
#: Digits that are worth printing.
_DIGITS = 3


def main() -> int:
    """Run the command; returns its exit code."""
    try:
        report(arguments())
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of 'shardgym collect'")
    parser.add_argument("--start", required=True, help="name in shardgym/costs/roofline.py")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def report(given: argparse.Namespace) -> None:
    """Fit and print."""
    samples = read_compute(given.data)
    start = device_constants(given.start)
    facts = given.data / DEVICE
    fixed: dict[str, float] = {}
    if facts.exists():
        fixed["memory_bandwidth"] = DeviceFacts.load(facts).copy_bandwidth
    learned = with_role(samples, "oracle")
    test = with_role(samples, "test")
    fitted = rounded(fit(start, learned, fixed))
    result: dict[str, Any] = {
        "constants": {name: getattr(fitted, name) for name in FITTED},
        "measurements": len(learned), "sets": sets_of(learned),
        "test measurements": len(test), "test sets": sets_of(test),
        "error before": error(start, test), "error after": error(fitted, test),
    }  # fmt: skip
    if given.json:
        print(json.dumps(result, indent=1))
        return
    for name, value in result.pop("constants").items():
        print(f"{name:<20}{value:.4g}")
    for name, value in result.items():
        print(f"{name:<20}{value:.4g}")


def fit(start: DeviceConstants, samples: ComputeSamples, fixed: dict[str, float]) -> DeviceConstants:
    """Return the constants with the smallest squares of logarithmic errors; some squares count less (soft L1)."""
    optimize: Any = import_extra("scipy.optimize", "fitting constants")
    names = [name for name in FITTED if name not in fixed]
    known = dataclasses.replace(start, **fixed)

    def with_logs(logs: Floats) -> DeviceConstants:
        return dataclasses.replace(known, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: Floats) -> Floats:
        return np.asarray(np.log(predicted(with_logs(logs), samples) / samples.ms).ravel())

    first = np.log([max(float(getattr(known, name)), _LEAST) for name in names])
    return with_logs(optimize.least_squares(residuals, first, loss="soft_l1", f_scale=0.2).x)


def sets_of(samples: ComputeSamples) -> int:
    """Return how many distinct shard sets were measured."""
    return len(np.unique(samples.labels.content))


def predicted(device: DeviceConstants, samples: ComputeSamples) -> Floats:
    """Return forward and backward ms of each sample, shape (N, 2)."""
    shards = samples.shards
    ids = shards.batch * shards.pooling
    state = 4 * (shards.state_per_weight * shards.columns + shards.state_per_row)
    times = compute_ms(
        device,
        batch_size=shards.batch,
        ids=ids,
        distinct=distinct_rows(shards),
        width_bytes=shards.columns * shards.element_bytes,
        output_bytes=shards.columns * shards.element_bytes,
        state_bytes=state,
    )
    starts = np.concatenate([[0], np.cumsum(samples.counts)[:-1]])
    forward, backward = (np.add.reduceat(ms, starts) for ms in times)
    return np.column_stack([device.forward_ms + forward, device.backward_ms + backward])


def error(device: DeviceConstants, samples: ComputeSamples) -> float:
    """Return the mean absolute error of forward plus backward, as a share."""
    measured = samples.ms.sum(axis=1)
    return float(np.mean(np.abs(predicted(device, samples).sum(axis=1) / measured - 1)))


def rounded(device: DeviceConstants) -> DeviceConstants:
    """Return constants with as many digits as are worth anything."""
    values = {name: getattr(device, name) for name in FITTED}
    digits = {name: 0.0 if value < _NOTHING else float(f"{value:.{_DIGITS}g}") for name, value in values.items()}
    return dataclasses.replace(device, **{**digits, "cache_bytes": int(digits["cache_bytes"])})


if __name__ == "__main__":
    sys.exit(main())
