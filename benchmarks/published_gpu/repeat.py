"""Published kernels measured again on a GPU, described as in `rows.csv`.

    python benchmarks/published_gpu/repeat.py FILE [--minutes X] [--small]

Every kernel is appended to FILE as soon as it is timed; the same command resumes where it was stopped. `run.py
--measured` then compares the model with it.
"""

import argparse
import csv
import dataclasses
import io
import itertools
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from predictions import optimizer_of, table_of
from rows import Row, gpu_name, read_rows

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.workers import kernel_timer
from shardgym.errors import MeasurementError
from shardgym.files import append_flushed, drop_torn_line
from shardgym.tables.table import Optimizer, Precision

#: By how much sizes are divided where they are to be small.
_SMALLER = 64
_COLUMNS = "id,gpu,op,optimizer,weights_precision,B,E,T,D,L,id_distribution,time_us,bw_gbps,source"
_TIMEOUT_S = 60.0


class Kernel(NamedTuple):
    """A forward and a backward pass."""

    shard_set: ShardSet
    #: The columns from `optimizer` to `id_distribution`.
    columns: tuple[str, ...]

    def op(self, phase: str) -> str:
        """Return the column `op` of "forward" or "backward"."""
        return phase if self.shard_set.shards[0].table.is_pooled else f"{phase} (nobag)"


def kernels(*, small: bool = False) -> Iterator[Kernel]:
    """Yield each kernel that was published with all its rows in the GPU's memory, once; for a rehearsal, smaller ones.

    First come those with the precision and the optimiser that they were published with.
    """
    rows = [row for row in read_rows() if row.kind == "fused"]
    published = [_kernel(row, "fp16" if row.element_bytes == 2 else "fp32", optimizer_of(row), small) for row in rows]
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    optimizers: tuple[Optimizer, ...] = ("exact_sgd", "rowwise_adagrad")
    others = [_kernel(row, *kind, small) for kind in itertools.product(precisions, optimizers) for row in rows]
    yield from dict.fromkeys([*published, *others])


def _kernel(row: Row, precision: Precision, optimizer: Optimizer, small: bool) -> Kernel:
    divisor = _SMALLER if small else 1
    bags = int(row.bags) // divisor
    table = dataclasses.replace(
        table_of(row), num_embeddings=int(row.rows) // divisor, pooling="none" if "nobag" in row.op else "sum"
    )
    shards = tuple(
        ShardSpec(dataclasses.replace(table, name=f"published {n}"), (0, table.num_embeddings), table.embedding_dim)
        for n in range(int(row.tables))
    )
    sizes = (str(bags), str(table.num_embeddings), str(len(shards)), str(table.embedding_dim), f"{row.pooling:g}")
    # Distinct rows that a source counted are not those of other ids.
    law = "pow-law alpha 1.05" if "alpha 1.05" in row.ids else "uniform"
    return Kernel(ShardSet(shards, bags, precision, optimizer), (optimizer, precision, *sizes, law))


def measure(path: Path, *, minutes: float = math.inf, small: bool = False) -> tuple[int, str]:
    """Time the kernels that a file lacks on the first GPU; return how many are left, and a summary."""
    end_s = time.monotonic() + 60 * minutes
    drop_torn_line(path)
    if not path.exists():
        append_flushed(path, f"{_COLUMNS}\n".encode())
    # A kernel is two lines that are written together.
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))[1:]
    known = {tuple(row[2:11]) for row in rows}
    wanted = [kernel for kernel in kernels(small=small) if (kernel.op("backward"), *kernel.columns) not in known]
    launches = [float(row[-1].split()[-2]) for row in rows]
    failed = 0
    timer = kernel_timer("cuda", 0, _TIMEOUT_S)
    timer.start()
    gpu = gpu_name(timer.facts[0]["hardware"])
    while wanted and time.monotonic() < end_s:
        kernel = wanted.pop(0)
        try:
            (found,) = timer.ask(TimingJob(kernel.shard_set, warmups=3, iterations=10))
        except MeasurementError as error:
            failed += 1
            print(f"{kernel.op('forward')} {kernel.columns}: {error}", flush=True)
            continue
        launches.append(found.launch_ms)
        source = "ShardGym | " + "; ".join([*found.notes, f"the host launches a step in {found.launch_ms:.3f} ms"])
        text = io.StringIO()
        for phase, times_ms in zip(("forward", "backward"), found.times.T, strict=True):
            time_us = f"{1e3 * statistics.median(times_ms):.2f}"
            name = f"M{len(rows):03}"
            rows.append([name, gpu, kernel.op(phase), *kernel.columns, time_us, "", source])
            csv.writer(text, lineterminator="\n").writerow(rows[-1])
        append_flushed(path, text.getvalue().encode())
    timer.close()
    told = f"{len(rows)} times, {failed} kernels could not be timed, {len(wanted)} are left"
    return len(wanted), f"{told}; the host launches a step in {statistics.median(launches or [0.0]):.3f} ms (median)"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="where kernels go (CSV)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no kernel after this time")
    parser.add_argument("--small", action="store_true", help="use a 64th of batches and tables, for a try on a CPU")
    given = parser.parse_args()
    print(measure(given.file, minutes=given.minutes, small=given.small)[1])


if __name__ == "__main__":
    main()
