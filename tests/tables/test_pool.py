"""TablePool: the train/test cut, scaling, and finding pools by name."""

import pytest

from shardgym.errors import InputError, UnknownNameError
from shardgym.tables.pools import TablePool, load_pool, pool_names
from shardgym.tables.table import EmbeddingTable, RecordedIds, ZipfIds


def pool_of(*names, batch_size=64, **fields):
    return TablePool("toy", batch_size, tuple(EmbeddingTable(name, 100, 8, **fields) for name in names))


def test_a_pool_refuses_a_name_that_occurs_twice():
    with pytest.raises(ValueError, match="'a' occurs more than once"):
        pool_of("a", "a")


def test_halves_are_disjoint_equal_and_cover_the_pool():
    pool = pool_of(*(f"t{i}" for i in range(100)))
    train, test = ({t.name for t in half} for half in pool.split())
    assert len(train) == len(test) == 50
    assert train | test == {t.name for t in pool}


def test_the_halves_of_known_names_never_change():
    train, test = pool_of("t000", "t001", "t002", "t003", "t004").split()
    assert [t.name for t in train] == ["t003", "t004"]  # smallest SHA-256 of "shardgym pool split 1\n" + name
    assert [t.name for t in test] == ["t000", "t001", "t002"]


def test_scaling_divides_rows_and_batch_and_keeps_pooling():
    small = pool_of("a", pooling_factor=3.5, ids=ZipfIds(s=1.1, q=7.5)).scaled(8)
    assert small.batch_size == 8
    assert small[0].num_embeddings == 13  # 100 / 8, rounded up
    assert small[0].pooling_factor == 3.5
    assert small[0].ids == ZipfIds(s=1.1, q=0.5)  # the interval starts at 0.5 + q: 8 / 8 = 1


@pytest.mark.parametrize("factor", [0, -1, 3])
def test_scaling_needs_a_divisor_of_the_batch(factor):
    with pytest.raises(InputError, match="divisor of its batch size 64"):
        pool_of("a").scaled(factor)


def test_recorded_ids_cannot_be_scaled():
    ids = RecordedIds("x.pt", "t000", 64, 64, "0" * 64)
    with pytest.raises(InputError, match="recorded"):
        pool_of("a", ids=ids).scaled(2)


def test_every_named_pool_loads_under_its_name():
    names = pool_names()
    assert names[0] == "synthetic-2021"
    assert len(set(names)) == len(names)
    for name in names:
        assert load_pool(name).name == name


def test_an_unknown_pool_suggests_close_names():
    with pytest.raises(UnknownNameError, match="synthetic-2021"):
        load_pool("synthetic-2020")


def test_a_pool_of_one_table_has_no_halves():
    with pytest.raises(InputError, match="one table"):
        pool_of("a").split()
