"""import-tables: tasks and pools from files of tables, and from files of ids."""

import dataclasses
from pathlib import Path
from typing import get_args

import click
from tabulate import tabulate

from shardgym.cli.common import answer, by_name, count, for_names, json_option, say, takes_topology, writes
from shardgym.cli.plan_files import write_task
from shardgym.errors import InputError, UnknownNameError
from shardgym.files import write_whole
from shardgym.plans.shard import COLUMN_UNIT
from shardgym.tables.pools import load_pool
from shardgym.tables.streams.statistics import FeatureStatistics
from shardgym.tables.streams.stream import ENDINGS, MIN_ROWS, holds_ids, open_stream
from shardgym.tables.table import Optimizer, TablePool, tables_in_batches
from shardgym.tables.tables_of_streams import PLACEHOLDER_DIM, pool_of_statistics
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

#: Features that are listed; if there are more, only totals are.
_MOST_LISTED = 40

#: Rows per distinct id above which ids look like hashes, where the largest id sets the number of rows.
_MOST_ROWS_PER_ID = 100


@click.command("import-tables")
@click.argument("source", metavar="FILE")
@takes_topology(required=False)
@click.option("--batch-size", type=click.IntRange(1), metavar="B", help="Samples per step over all devices.")
@click.option("--feature", "features", multiple=True, metavar="NAME", help="For ids: take this feature; repeatable.")
@click.option(
    "--hash-size", multiple=True, metavar="[NAME=]ROWS", callback=by_name(click.IntRange(1)),
    help="For ids: rows of the table, for all features or one; ids are taken modulo this (default: ids are rows).",
)  # fmt: skip
@click.option(
    "--dim", "widths", multiple=True, metavar="[NAME=]COLUMNS", callback=by_name(click.IntRange(1)),
    help=f"For ids: width of the tables, for all features or one; repeatable (default: {PLACEHOLDER_DIM}).",
)  # fmt: skip
@click.option("--samples", type=click.IntRange(1), metavar="N", help="For ids: read at most this many samples.")
@click.option("--fit", is_flag=True, help="For ids: draw them from a fitted law (default: measure the file's).")
@click.option(
    "--unpooled", multiple=True, metavar="NAME", help="Unpooled table: it returns a row for each id, as for sequences."
)
@click.option(
    "--optimizer", type=click.Choice(get_args(Optimizer)),
    help="Optimiser of tables that do not name one (default: exact_sgd, without state).",
)  # fmt: skip
@writes("task or pool")
@json_option
def import_tables(
    source: str,
    topology: Topology | None,
    batch_size: int | None,
    features: tuple[str, ...],
    hash_size: dict[str, int],
    widths: dict[str, int],
    samples: int | None,
    fit: bool,
    unpooled: tuple[str, ...],
    optimizer: Optimizer | None,
    output: Path,
    as_json: bool,
) -> int:
    """Make a task from your tables, or from a log of ids.

    With --devices the command writes a task, else a pool. FILE holds tables (.json, .csv), or ids: dlrm_datasets
    (.pt), Parquet with a row per sample and a column of ids or of lists of ids per feature (.parquet), or text like
    Criteo's (.tsv, .txt); .pt and text may be gzipped. From ids, the command counts rows, ids per sample, reuse of
    rows, and where popular rows lie, in whole batches only. To measure with the ids themselves, list their folder in
    the variable SHARDGYM_DATA.
    """
    if optimizer is not None and topology is None:
        raise InputError("--optimizer is for a task: give --devices, too")
    found: dict[str, FeatureStatistics] = {}
    by_largest_id: list[str] = []
    if holds_ids(source):
        if "" in hash_size and len(hash_size) > 1:
            raise InputError("--hash-size: expected one value for all features, or NAME=VALUE for each")
        sizes = hash_size.get("", hash_size or None)
        stream = open_stream(source, features=features or None, hash_size=sizes, samples=samples)
        for column in stream.left_out:
            say(f"left out: {column}, not a column of ids")
        batch_size = batch_size or stream.batch_size
        if batch_size is None:
            raise InputError(f"{source}: has no batch size; give --batch-size")
        found = stream.statistics(batch_size, checksum=not fit)
        pool = pool_of_statistics(stream, found, for_names({"": PLACEHOLDER_DIM} | widths, stream.features), fit)
        by_largest_id = [name for name in found if name not in stream.hash_sizes]
    else:
        given = {"--feature": features, "--hash-size": hash_size, "--dim": widths, "--samples": samples, "--fit": fit}
        for option, value in given.items():
            if value:
                raise InputError(f"{source}: {option} is for files of ids, which end in {', '.join(ENDINGS)}")
        pool = load_pool(source)
        in_batches = batch_size or pool.batch_size
        tables = tables_in_batches(pool.tables, pool.batch_size, in_batches)
        pool = dataclasses.replace(pool, tables=tables, batch_size=in_batches)
    for table in pool:
        if table.embedding_dim % COLUMN_UNIT:
            wrong = f"table '{table.name}' has {table.embedding_dim} columns"
            raise InputError(f"{source}: FBGEMM needs widths divisible by {COLUMN_UNIT}, {wrong}")
    known = [table.name for table in pool]
    for name in unpooled:
        if name not in known:
            raise UnknownNameError(f"table of {source}", name, known)
    tables = tuple(dataclasses.replace(table, pooling="none") if table.name in unpooled else table for table in pool)
    pool = dataclasses.replace(pool, tables=tables)
    sparse = [name for name in by_largest_id if found[name].rows > _MOST_ROWS_PER_ID * max(found[name].distinct, 1)]
    content: TablePool | ShardingTask = pool
    if topology is None:
        text = f"{output}: a pool of {count(len(pool), 'table')}, batch size {pool.batch_size}"
        write_whole(output, pool.to_json(indent=2) + "\n")
    else:
        content = ShardingTask(
            pool.tables, topology, pool.batch_size, optimizer=optimizer or "exact_sgd", name=pool.name
        )
        text = write_task(output, content, *(f"--hash-size {name}=ROWS if its ids are hashes" for name in sparse[:1]))
        text += "" if batch_size else f"\nbatch size: {pool.batch_size} (no --batch-size)"
    for name in sparse:
        say(
            f"shardgym: warning: feature '{name}' gets {found[name].rows:,} rows (largest id + 1) for at most "
            f"{count(found[name].distinct, 'distinct id')}: if its ids are hashes, give --hash-size {name}=ROWS"
        )
    if found:
        text += f"\n{_describe_ids(found)}"
    assumed = [] if "" in widths else [name for name in found if name not in widths]
    if assumed:
        text += f"\nassumed: {PLACEHOLDER_DIM} columns of {len(assumed)} of {count(len(found), 'table')} (no --dim)"
    if by_largest_id:
        of_some = "" if len(by_largest_id) == len(found) else f" of {count(len(by_largest_id), 'feature')}"
        text += f"\nrows{of_some}: largest id + 1, at least {MIN_ROWS} (no --hash-size)"
    page = {"task" if topology else "pool": str(output), "digest": content.digest, "tables": len(pool)}
    shown = ("rows", "samples", "pooling_factor", "distinct_share")
    rows = {name: {key: getattr(of_one, key) for key in shown} for name, of_one in found.items()}
    answer(as_json, page | {"features": rows}, text)
    return 0


def _describe_ids(found: dict[str, FeatureStatistics]) -> str:
    ids = sum(of_one.ids for of_one in found.values())
    distinct = sum(of_one.distinct for of_one in found.values()) / max(ids, 1)
    samples = next(iter(found.values())).samples
    text = f"{count(samples, 'sample')} in whole batches, {count(ids, 'id')}: distinct rows are "
    text += f"{100 * distinct:.1f} % of the ids of a batch"
    if len(found) > _MOST_LISTED:
        return text
    headers = ("feature", "rows", "ids per sample", "distinct")
    cells = [
        [name, f"{of_one.rows:,}", f"{of_one.pooling_factor:.3g}", f"{100 * of_one.distinct_share:.1f} %"]
        for name, of_one in found.items()
    ]
    return f"{text}\n{tabulate(cells, headers=headers, tablefmt='simple', disable_numparse=True)}"
