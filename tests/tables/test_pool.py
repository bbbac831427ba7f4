"""TablePool: the train/test cut, scaling, and finding pools by name."""

import pytest

from shardgym import EmbeddingTable, InputError, RecordedIds, TablePool, ZipfIds, load_pool
from shardgym.tables.pools import pool_names


def pool_of(*names, batch_size=64, **fields):
    return TablePool("toy", batch_size, tuple(EmbeddingTable(name, 100, 8, **fields) for name in names))


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pool_of("a", "a"), "'a' occurs more than once"),
        (lambda: pool_of("a").split(), "one table"),
        (lambda: pool_of("a").scaled(0), "divisor of its batch size 64"),
        (lambda: pool_of("a").scaled(3), "divisor of its batch size 64"),
        (lambda: pool_of("a", ids=RecordedIds("x.pt", "t000", 64, 64, "0" * 64)).scaled(2), "recorded"),
        (lambda: load_pool("synthetic-2020"), "synthetic-2021"),
    ],
)
def test_what_is_no_pool_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_every_named_pool_loads_under_its_name():
    names = pool_names()
    assert names[0] == "synthetic-2021"
    assert len(set(names)) == len(names)
    for name in names:
        assert load_pool(name).name == name
