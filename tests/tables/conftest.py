"""Files of ids to read."""

import gzip
import itertools

import pytest
import torch


@pytest.fixture
def write_criteo(tmp_path):
    """Return a function that writes lines with the given ids of cat_0 and cat_25, "" for an empty cell."""

    def write(pairs, name="clicks.tsv"):
        numbers = "\t".join(["0", "5", "", "-1", *["7"] * 10])
        middle = "\t".join(["000000ff"] * 24)
        text = "".join(f"{numbers}\t{first}\t{middle}\t{last}\n" for first, last in pairs)
        path = tmp_path / name
        with (gzip.open if name.endswith(".gz") else open)(path, "wb") as file:
            file.write(text.encode())
        return path

    return write


@pytest.fixture
def write_parquet(tmp_path):
    """Return a function that writes columns to a Parquet file."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write(name="ids.parquet", row_group_size=None, **columns):
        arrays = {name: pyarrow.array(values) for name, values in columns.items()}
        parquet.write_table(pyarrow.table(arrays), tmp_path / name, row_group_size=row_group_size)
        return tmp_path / name

    return write


@pytest.fixture
def write_dlrm(tmp_path):
    """Return a function that writes bags[table][sample] = list of ids as dlrm_datasets."""

    def write(bags, name="toy.pt", **parts):
        samples = list(itertools.chain.from_iterable(bags))
        lengths = torch.tensor([len(ids) for ids in samples])
        content = {
            "indices": torch.tensor(list(itertools.chain.from_iterable(samples)), dtype=torch.int64),
            "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
            "lengths": lengths.reshape(len(bags), -1),
            **parts,
        }
        with (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "wb") as file:
            torch.save(tuple(content.values()), file)
        return tmp_path / name

    return write
