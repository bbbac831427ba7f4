"""From measurements to the rows of a data set."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats
from shardgym.collection.log import Measurement, Times
from shardgym.collection.plan import CollectionPlan
from shardgym.costs.collectives.interleave import QUANTILE
from shardgym.costs.fbgemm.content import Piece
from shardgym.costs.simulator.layout import CommRow, ComputeRow
from shardgym.errors import InputError
from shardgym.table import REUSE_BINS


def compute_row(plan: CollectionPlan, measurement: Measurement) -> ComputeRow:
    """Return the row of a shard set; its times are medians over the steps.

    Raises:
        InputError: the measurement is of something else than the plan has under its name.
    """
    entry = measurement.entry
    content = plan.content(entry)
    check_identity(plan, measurement)
    forward, backward = _array(measurement.forward_ms)[:, 0], _array(measurement.backward_ms)[:, 0]
    pieces = content.pieces
    return ComputeRow(
        entry.sample_id, entry.role, measurement.content, entry.repeat,
        content.batch_size, content.precision, content.optimizer,
        num_embeddings=[p.num_rows for p in pieces],
        embedding_dim=[p.width for p in pieces],
        pooling_factor=[ids_per_sample(p) for p in pieces],
        reuse_histogram=[list(p.table.reuse_histogram or (0.0,) * REUSE_BINS) for p in pieces],
        table_name=[p.table.name for p in pieces],
        forward_ms=float(np.median(forward)),
        backward_ms=float(np.median(backward)),
        noise=relative_error(forward + backward),
    )  # fmt: skip


def comm_row(plan: CollectionPlan, measurement: Measurement) -> CommRow:
    """Return the row of an exchange; its times are lower quartiles over the iterations, as in the measured cost.

    Raises:
        InputError: the measurement is of something else than the plan has under its name.
    """
    entry = measurement.entry
    spec = plan.exchange(entry)
    check_identity(plan, measurement)
    forward, backward = _array(measurement.forward_ms), _array(measurement.backward_ms)
    fewest = min(len(forward), len(backward))
    there, back = (np.quantile(times, QUANTILE, axis=0) for times in (forward, backward))
    slowest = int((there + back).argmax())
    return CommRow(
        entry.sample_id, entry.role, measurement.content, entry.repeat,
        num_devices=len(spec.widths), batch_size=spec.batch_size, element_bytes=spec.element_bytes,
        widths=list(spec.widths), start_offsets_ms=list(spec.offsets_ms),
        forward_ms=there.tolist(), backward_ms=back.tolist(),
        noise=relative_error(forward[:fewest, slowest] + backward[:fewest, slowest]),
    )  # fmt: skip


def check_identity(plan: CollectionPlan, measurement: Measurement) -> None:
    """Raise `InputError` when a measurement is of something else than the plan has under its name."""
    expected = plan.digest(measurement.entry)
    if measurement.content != expected:
        raise InputError(
            f"sample {measurement.sample_id} was measured of {measurement.content[:12]}, this version of shardgym "
            f"draws {expected[:12]}: its rules of drawing or its pool differ; finish the folder with the version "
            "that made it"
        )


def ids_per_sample(piece: Piece) -> float:
    """Return the ids per sample that fall into a piece: popular rows are spread evenly, so a range gets its share."""
    return piece.table.pooling_factor * piece.num_rows / piece.table.num_embeddings


def relative_error(times: Floats) -> float:
    """Return the relative standard error of the mean of some times; 0 for a single one."""
    if len(times) < 2:
        return 0.0
    return float(times.std(ddof=1) / np.sqrt(len(times)) / times.mean())


def _array(times: Times) -> Floats:
    return np.array(times, dtype=np.float64)
