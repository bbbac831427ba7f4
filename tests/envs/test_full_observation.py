"""Full observations against figures worked out by hand."""

import numpy as np
import pytest
from env_toys import halvable_task, make_tasks, masked_rollout, play

from shardgym.envs import ENV_IDS
from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv
from shardgym.envs.features import TABLE_FEATURES
from shardgym.errors import InputError

ANY_WISE = "ShardGym/AnyWise-v0"
FEATURES = len(TABLE_FEATURES)


def full(env, actions):
    """The observation after `actions`, by rows of shards."""
    [*_, (observation, *_)] = play(env, actions)
    rows = len(observation["waiting"])
    by_row = {name: observation[name].reshape(rows, -1) for name in ("tables", "membership")}
    return observation | by_row


def test_tables_are_shown_placed_ones_first_then_those_that_wait():
    task = halvable_task([4, 16, 8])
    seen = full(TableWiseEnv(tasks=[task], observation="full", max_tables=4, max_devices=3), [1])
    # By size: t1, t2, t0; t1 is on device 1.
    assert seen["positions"].tolist() == [2, 3, 1, 0]
    assert seen["waiting"].tolist() == [0, 1, 1, 0]
    assert seen["membership"].tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert seen["width_shares"].tolist() == [1, 1, 1, 0]
    log_dim = TABLE_FEATURES.index("log_dim")
    assert seen["tables"][:, log_dim].tolist() == pytest.approx([4 / 16, 3 / 16, 2 / 16, 0])
    assert np.array_equal(seen["tables"][1], seen["table"])
    assert not seen["tables"][3].any()


def test_halves_are_rows_of_their_own():
    env = ColumnWiseEnv(tasks=[halvable_task([16, 4])], observation="full", max_splits=2)
    # t0 is halved, its left half goes to 1, its right half is halved: quarters of 4 columns tie with t1, and go first.
    seen = full(env, [2, 1, 2])
    assert seen["positions"].tolist() == [1, 1, 1, 2]
    assert seen["waiting"].tolist() == [0, 1, 1, 1]
    assert seen["width_shares"].tolist() == [0.5, 0.25, 0.25, 1]
    assert seen["membership"].tolist() == [[0, 1], [0, 0], [0, 0], [0, 0]]
    features = {name: seen["tables"][:, i].tolist() for i, name in enumerate(TABLE_FEATURES)}
    assert features["log_dim"] == pytest.approx([3 / 16, 2 / 16, 2 / 16, 2 / 16])
    # Shares of the task's 20 columns; lookups are 16 x 1 and 4 x 2.
    assert features["dim_share"] == pytest.approx([8 / 20, 4 / 20, 4 / 20, 4 / 20])
    assert features["lookup_share"] == pytest.approx([8 / 24, 4 / 24, 4 / 24, 8 / 24])
    assert features["bytes_share"] == pytest.approx([8 / 20, 4 / 20, 4 / 20, 4 / 20])
    # Both splits are used up; the shard to place has a quarter of its table's columns. Four shards, one placed.
    assert seen["splits"].tolist() == [0, 0.25]
    assert seen["progress"].tolist() == [0.25]
    assert seen["remaining"][0] == 0.75


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_a_full_observation_is_a_compact_one_and_more(env_id):
    import gymnasium

    full_env, compact_env = (
        gymnasium.make(env_id, tasks=make_tasks(), observation=observation) for observation in ("full", "compact")
    )
    for (seen, *_), (less, *_) in zip(masked_rollout(full_env, 3), masked_rollout(compact_env, 3), strict=True):
        assert all(np.array_equal(seen[name], less[name]) for name in less)
        added = {"tables", "positions", "width_shares", "waiting", "membership"}
        assert set(seen) - set(less) == added | ({"row_shares"} if env_id == ANY_WISE else set())
        # What is placed and what waits are all there is, and the first that waits is the one to place.
        holders = seen["membership"].reshape(len(seen["waiting"]), -1).sum(axis=1)
        assert (holders <= 1).all() or env_id == ANY_WISE
        assert (((holders > 0) + seen["waiting"]) == (seen["positions"] > 0)).all()
        rows = seen["tables"].reshape(-1, FEATURES)
        assert np.array_equal(rows[seen["waiting"].argmax()], seen["table"]) or not seen["waiting"].any()


def test_more_tables_than_the_space_has_rows_are_an_input_error():
    with pytest.raises(InputError, match=r"3 tables.*at most 2.*max_tables=3"):
        TableWiseEnv(tasks=[halvable_task([4, 4, 4])], observation="full", max_tables=2).reset()
    assert TableWiseEnv(tasks=[halvable_task([4, 4, 4])], max_tables=2).reset()


def test_observations_do_not_share_memory_with_the_environment():
    env = ColumnWiseEnv(tasks=[halvable_task([16, 4])], observation="full")
    first, _ = env.reset()
    kept = {name: values.copy() for name, values in first.items()}
    for values in first.values():
        values[:] = 0
    again, _ = env.reset()
    assert all(np.array_equal(again[name], kept[name]) for name in kept)
