"""Files of ids with bytes changed, cut out and put in: read, or refused in one line."""

from __future__ import annotations

import gzip
import random

import numpy as np
import pytest

from shardgym import InputError, open_stream

LINE = "\t".join(["1"] * 14 + ["68fd1e64"] * 26) + "\n"


def damaged(rng, data):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 3, 20])):
        at = rng.randrange(len(changed))
        kind = rng.random()
        if kind < 0.6:
            changed[at] = rng.randrange(256)
        elif kind < 0.8 and len(changed) > 60:
            del changed[at : at + rng.randrange(1, 50)]
        else:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20)))
    return changed


@pytest.fixture(params=["parquet", "tsv", "tsv.gz"])
def ids(request, tmp_path):
    """The path of a whole file."""
    path = tmp_path / f"ids.{request.param}"
    if request.param == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        rng = np.random.default_rng(0)
        lists = [rng.integers(0, 99, n % 4).tolist() for n in range(3000)]
        table = pyarrow.table({"a": pyarrow.array(rng.integers(0, 1000, 3000)), "b": pyarrow.array(lists)})
        parquet.write_table(table, path, row_group_size=700)
    else:
        text = (50 * LINE).encode()
        path.write_bytes(text if request.param == "tsv" else gzip.compress(text))
    return path


def test_a_damaged_file_is_read_or_refused_in_one_line(ids):
    rng = random.Random(0)
    whole = ids.read_bytes()
    said = []
    for _ in range(150):
        ids.write_bytes(damaged(rng, whole))
        try:
            stream = open_stream(ids, hash_size=None if ids.suffix == ".parquet" else 100)
            stream.statistics(10)
            for feature in stream.features[:2]:
                stream.read(feature)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 50
    assert all("\n" not in line and str(ids) in line for line in said)
