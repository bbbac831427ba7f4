"""Writes small files in the form of dlrm_datasets."""

import gzip
import itertools

import pytest


@pytest.fixture
def write_dlrm(tmp_path):
    """Return a function that writes bags[table][sample] = list of ids and returns the path."""
    import torch

    def write(bags, name="toy.pt", **parts):
        samples = list(itertools.chain.from_iterable(bags))
        lengths = torch.tensor([len(ids) for ids in samples])
        content = {
            "indices": torch.tensor(list(itertools.chain.from_iterable(samples)), dtype=torch.int64),
            "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
            "lengths": lengths.reshape(len(bags), -1),
            **parts,
        }
        path = tmp_path / name
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "wb") as file:
            torch.save(tuple(content.values()), file)
        return path

    return write
