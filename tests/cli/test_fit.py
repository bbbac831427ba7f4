"""shardgym fit: weights of a learned solver from one command."""

import json

import pytest

from shardgym.cli import main

TINY = "dreamshard,policy_updates=1,collected_tasks=2,cost_updates=2,cost_batch=4,update_tasks=2,update_episodes=2"
FIT = ["fit", TINY, "--suite", "tiny-v1", "--oracle", "roofline", "--tasks", "12"]


class Simple:
    """Learns nothing; takes no options in `fit`."""

    def solve(self, task, cost, seed=0):
        raise NotImplementedError

    def fit(self, tasks, cost, seed=0):
        self.count = len(tasks)

    def save(self, folder):
        folder.mkdir(parents=True)
        (folder / "count").write_text(str(self.count))


def test_fitted_weights_solve(here, capsys, output_of):
    assert main([*FIT, "--steps", "2", "--seed", "1"]) == 0
    folder = "weights/dreamshard/tiny-v1/seed-1"
    assert f"use them with --solver dreamshard,weights={folder}" in capsys.readouterr().out
    card = json.loads((here / folder / "card.json").read_text())
    assert (card["steps"], card["seed"], card["oracle"]["name"]) == (2, 1, "roofline")
    assert card["tasks"]["source"] == "train half of the pool of tiny-v1, drawn like its tasks with seed 1"
    solve = ["solve", "tiny-v1/0", "--solver", f"dreamshard,weights={folder}", "-o", "plan.json"]
    assert main(solve) == 0
    assert "checkpoint.pt exists: resume that training" in output_of([*FIT, "--steps", "2", "--seed", "1"], 2).err
    assert main([*FIT, "--steps", "2", "--seed", "1", "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["card"]["weights_sha256"] == card["weights_sha256"]


def test_a_class_of_ones_own_needs_no_options(here):
    assert main(["fit", "test_fit:Simple", "--suite", "tiny-v1", "--tasks", "5", "--out", "own"]) == 0
    assert (here / "own" / "count").read_text() == "5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dim_greedy", "--suite", "tiny-v1"], "solver 'dim_greedy' cannot learn: it has no fit(tasks, cost, seed)"),
        (["test_fit:Simple", "--suite", "tiny-v1", "--steps", "3"], "--steps: fit() of this solver takes no 'steps'"),
        (["dreamshard", "--suite", "published-v1"], "suite 'published-v1' is not drawn from the test half of a pool"),
        (["dreamshard,weights=here", "--suite", "tiny-v1"], "no weights in here: expected a folder with card.json"),
    ],
)
def test_bad_usage_is_one_line(arguments, message, output_of):
    error = output_of(["fit", *arguments], 2).err
    assert message in error
    assert error.count("\n") == 1
