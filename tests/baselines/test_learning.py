"""What learned solvers share: features, training that survives a kill, cards, and which weights serve a task."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from baseline_tasks import QUICK, small_tables, task_of
from pydantic.dataclasses import dataclass
from torch import nn

from baselines.learning.encoder import FEATURES, mlp, table_features
from baselines.learning.solver import LearnedSolver
from baselines.learning.training import CHECKPOINT, Learner, TrainingError, TrainingOracle, _Loop
from baselines.learning.weights import CARD, WEIGHTS, Shipped, SolverCard, choose_shipped
from shardgym import InputError, NoFeasiblePlanError, ShardingPlan, load_suite, make_cost, make_solver
from shardgym.costs.roofline import RooflineCost
from shardgym.envs.tasks import training_tasks
from shardgym.records import CONFIG, Record

COST = make_cost("roofline")


@dataclass(frozen=True, config=CONFIG)
class ToySettings(Record):
    """The loss is no number in step `nan_at`."""

    learning_rate: float = 0.1
    nan_at: int = -1


class ToyLearner(Learner):
    """Regresses on noise and remembers all of it; the newest counts as much as the first."""

    def __init__(self, setup):
        super().__init__(setup)
        self.optimizers = (torch.optim.Adam(setup.network.parameters(), lr=setup.settings.learning_rate),)

    def step(self, number, rng):
        noise = torch.from_numpy(rng.normal(size=(1, len(FEATURES)))).float()
        self.replay = {"noise": torch.cat([self.replay.get("noise", noise[:0]), noise])}
        self.oracle.queries += 1
        loss = (self.network(self.replay["noise"]) - 3).square().mean()
        if number == self._settings.nan_at:
            loss = loss * math.nan
        self.optimizers[0].zero_grad()
        loss.backward()
        self.optimizers[0].step()
        return {"loss": loss.item()}


class Toy(LearnedSolver[nn.Sequential]):
    """Puts every table on the device that a linear layer names."""

    name = "toy"
    settings_type = ToySettings
    default_steps = 6

    def build_network(self, scale):
        return mlp(len(FEATURES), 1)

    def make_learner(self, setup):
        return ToyLearner(setup)

    def place(self, network, task, cost, seed):
        scores = network(torch.from_numpy(table_features(task)))[:, 0]
        return ShardingPlan.table_wise(task, (scores > scores.mean()).long().tolist())


class WiderToy(Toy):
    def build_network(self, scale):
        return mlp(len(FEATURES), 2)


@pytest.fixture
def fitted(toy_task, tmp_path):
    solver = Toy().fit([toy_task], COST, source="toys")
    solver.save(tmp_path / "toy")
    return solver


def test_features_are_the_published_ones_with_amounts_as_logarithms(toy_task):
    features = table_features(toy_task)
    assert features.shape == (3, 21)
    assert len(FEATURES) == 21
    np.testing.assert_allclose(np.exp(features[0, [0, 1]]), [16, 5])
    assert np.expm1(features[1, 2]) == pytest.approx(4.0)
    assert np.exp(features[2, 3]) == pytest.approx(20 * 4 * 4)
    # Without a histogram of its own, a table has that of a batch of its ids.
    np.testing.assert_allclose(features[:, 4:].sum(axis=1), 1.0)


def test_training_tasks_share_no_table_with_the_suite():
    tasks = training_tasks("tiny-v1", 40, seed=3)
    in_suite = {table.name for task in load_suite("tiny-v1") for table in task.tables}
    assert not in_suite & {table.name for task in tasks for table in task.tables}
    assert training_tasks("tiny-v1", 40, seed=3) == tasks != training_tasks("tiny-v1", 40, seed=4)
    several = training_tasks(["tiny-v1", "tight8-v2"], 8, seed=3)
    assert several[:4] == tasks[:4]
    assert several[4:] == training_tasks("tight8-v2", 4, seed=3)
    with pytest.raises(InputError, match=r"^suite 'published-v1' is not drawn from the test half of a pool"):
        training_tasks(["tiny-v1", "published-v1"], 2)


def test_another_seed_gives_other_weights(toy_task):
    assert len({Toy().fit([toy_task], COST, seed).weights_digest for seed in (1, 2)}) == 2


def test_hidden_ids_do_not_count_in_training(toy_task):
    ids = np.array([1.0, 0, 0, 0, 0])
    replace = dataclasses.replace

    class WithIds(RooflineCost):
        ids_hidden = True

        def evaluate(self, task, plans):
            costs = super().evaluate(task, plans)
            return [replace(cost, per_device=cost.per_device + ids, ids_hidden=self.ids_hidden) for cost in costs]

    plans = [ShardingPlan.table_wise(toy_task, devices) for devices in ([0, 1, 0], [1, 0, 0])]
    cost = WithIds()
    hidden = TrainingOracle(cost).price_plans(toy_task, plans)
    totals = [answer.total_ms for answer in cost.evaluate(toy_task, plans)]
    np.testing.assert_allclose(hidden.sum(axis=2).max(axis=1), totals)
    cost.ids_hidden = False
    shown = TrainingOracle(cost).price_plans(toy_task, plans)
    np.testing.assert_allclose(shown - hidden, np.broadcast_to(ids, shown.shape), atol=1e-12)


@pytest.mark.parametrize("name", QUICK)
def test_every_learner_goes_on_where_it_was_killed(name, tmp_path, monkeypatch, caplog):
    if name == "ppo":
        pytest.importorskip("sb3_contrib", reason="needs the extra 'rl'")
    tasks = [task for task in training_tasks("tiny-v1", 10) if task.num_devices == 2][:4]
    solver = make_solver(name, **QUICK[name])
    whole = solver.fit(tasks, COST, steps=3, evaluate_every=1).weights_digest
    original = _Loop._check_numbers

    def killed(self, figures):
        if self._log.steps == 3:
            raise KeyboardInterrupt
        original(self, figures)

    monkeypatch.setattr(_Loop, "_check_numbers", killed)
    with pytest.raises(KeyboardInterrupt):
        solver.fit(tasks, COST, steps=3, evaluate_every=1, checkpoint_dir=tmp_path)
    monkeypatch.undo()
    state = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    caplog.set_level("INFO", "shardgym.solvers.fit")
    solver.fit(tasks, COST, steps=3, evaluate_every=1, checkpoint_dir=tmp_path, resume=True)
    assert f"resuming at step 2 of 3 from {tmp_path / CHECKPOINT}" in caplog.messages
    assert solver.weights_digest == whole
    assert [entry["step"] for entry in solver.card.curve] == [0, 1, 2, 3]
    assert (np.random.get_state()[1] == state[0]).all()
    assert torch.equal(torch.random.get_rng_state(), state[1])


@pytest.mark.parametrize("name", ["dreamshard", "autoshard", "ppo"])
def test_a_table_that_fits_nowhere_any_more_is_named(name):
    with pytest.raises(NoFeasiblePlanError, match=rf"^{name}: table 't\d' of 1600 bytes fits on no device"):
        make_solver(name).solve(task_of(small_tables(3), (2400, 2400)), COST)


def test_a_training_whose_time_is_over_says_so(toy_task, caplog):
    Toy().fit([toy_task], COST, steps=3, minutes=1e-9)
    assert "stopped at step 1 of 3: time is over; resume with more minutes" in caplog.text


def test_nan_stops_with_its_step_and_keeps_the_last_good_checkpoint(toy_task, tmp_path):
    with pytest.raises(TrainingError, match=r"^training stopped at step 4: loss is nan; .* holds the last good step"):
        Toy(nan_at=3).fit([toy_task], COST, checkpoint_dir=tmp_path, evaluate_every=2)
    kept = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert all(torch.isfinite(value).all() for value in kept["network"].values())
    with pytest.raises(TrainingError, match=r"^training stopped at step 4"):
        Toy(nan_at=3).fit([toy_task], COST, checkpoint_dir=tmp_path, evaluate_every=2, resume=True)


def test_a_figure_is_not_better_by_the_rounding_of_an_earlier_one(toy_task, monkeypatch):
    found = iter([1.0000056, 1.000008])  # 1.00001 in the curve, both
    monkeypatch.setattr(Toy, "_validate", lambda *_: {"validation_ms": next(found)})
    solver = Toy()
    solver.fit([toy_task], COST, steps=1, evaluate_every=1)
    assert solver.card.best_step == 0


def test_a_checkpoint_is_only_resumed_by_the_training_it_is_of(toy_task, tmp_path, caplog):
    Toy().fit([toy_task], COST, checkpoint_dir=tmp_path, steps=2, resume=True)
    assert f"there is no {tmp_path / CHECKPOINT}: training starts at step 0" in caplog.text
    with pytest.raises(InputError, match=r"checkpoint.pt exists: resume that training, or give another"):
        Toy().fit([toy_task], COST, checkpoint_dir=tmp_path, steps=2)
    with pytest.raises(InputError, match=r"other setting learning_rate \(0.1, not 0.2\), tasks, seed \(0, not 1\): "):
        Toy(learning_rate=0.2).fit([toy_task] * 3, COST, 1, checkpoint_dir=tmp_path, steps=2, resume=True)
    other = dataclasses.replace(toy_task, batch_size=7)
    with pytest.raises(InputError, match=r"other validation: "):
        Toy().fit([toy_task], COST, validation=[other], checkpoint_dir=tmp_path, steps=2, resume=True)
    (tmp_path / CHECKPOINT).write_bytes((tmp_path / CHECKPOINT).read_bytes()[:-40])
    with pytest.raises(InputError, match=r"checkpoint.pt: damaged, or no checkpoint of a solver's training"):
        Toy().fit([toy_task], COST, checkpoint_dir=tmp_path, steps=2, resume=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": []}, "^tasks: expected at least one task to fit on, got none$"),
        ({"cost": "roofline"}, r"^cost: expected a CostModel, got str 'roofline'"),
        ({"cost": make_cost("simulator", role="judge")}, "^cost 'simulator' is a judge, on which solvers must not be"),
        ({"resume": True}, "^resume needs checkpoint_dir"),
    ],
)
def test_wrong_arguments_of_fit_are_named(toy_task, arguments, message):
    with pytest.raises(InputError, match=message):
        Toy().fit(**{"tasks": [toy_task], "cost": COST} | arguments)


def test_loaded_weights_make_the_same_plan(fitted, toy_task, tmp_path):
    loaded = Toy.load(tmp_path / "toy")
    assert loaded.solve(toy_task, COST) == fitted.solve(toy_task, COST)
    assert loaded.weights_digest == fitted.weights_digest == loaded.card.weights_sha256
    assert loaded.training_time_s == pytest.approx(fitted.card.minutes * 60)
    card = SolverCard.load(tmp_path / "toy" / CARD)
    assert (card.solver, card.tasks.source, card.tasks.count) == ("toy", "toys", 1)
    assert (card.tasks.num_tables, card.tasks.num_devices) == ((3, 3), (2, 2))
    assert card.oracle["name"] == "roofline"
    assert card.oracle_queries == 6 + len(card.curve)
    assert card.curve[0]["step"] == 0 < card.curve[-1]["step"] == 6


def damage(folder, what):
    card = json.loads((folder / CARD).read_text())
    if what == "card":
        (folder / CARD).unlink()
    elif what == "solver":
        (folder / CARD).write_text(json.dumps(card | {"solver": "dreamshard"}))
    elif what == "bytes":
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-8])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("card", r"no weights in .*toy: expected a folder with card.json that 'shardgym fit toy'"),
        ("solver", r"card.json: weights of solver 'dreamshard', expected 'toy'$"),
        ("bytes", r"weights.safetensors: damaged, or not the weights that card.json is about"),
    ],
)
def test_damaged_weights_are_refused(fitted, tmp_path, what, message):
    damage(tmp_path / "toy", what)
    with pytest.raises(InputError, match=message):
        Toy.load(tmp_path / "toy")


def test_weights_of_another_architecture_are_refused(fitted, tmp_path):
    with pytest.raises(InputError, match=r"another architecture, fit again: .*size mismatch for 0.weight"):
        WiderToy.load(tmp_path / "toy")


def test_weights_for_the_nearest_number_of_devices_serve_a_task(tmp_path):
    shipped = {
        "eight": Shipped((tmp_path / "8-0", tmp_path / "8-1"), (8, 8)),
        "few": Shipped((tmp_path / "f-0",), (2, 4)),
    }
    chosen = {devices: choose_shipped(shipped, devices, 0).name for devices in (1, 3, 5, 6, 8, 100)}
    assert chosen == {1: "f-0", 3: "f-0", 5: "f-0", 6: "8-0", 8: "8-0", 100: "8-0"}
    assert [choose_shipped(shipped, 8, seed).name for seed in range(4)] == ["8-0", "8-1", "8-0", "8-1"]


def test_shipped_weights_are_found_by_solver_and_seed(fitted, toy_task, tmp_path, monkeypatch):
    for seed in (0, 1):
        Toy().fit([toy_task], COST, seed).save(tmp_path / "shipped" / "toy" / "toys-v1" / f"seed-{seed}")
    monkeypatch.setattr("baselines.learning.weights.SHIPPED", tmp_path / "shipped")
    solver = Toy()
    assert solver.weights_digest is solver.training_time_s is None
    digests = set()
    for seed in range(3):
        solver.solve(toy_task, COST, seed)
        digests.add(solver.weights_digest)
    assert len(digests) == 2
    assert solver.training_time_s >= 0
    solver.check_ready(COST)


def test_settings_of_training_must_be_those_of_the_weights(toy_task, tmp_path, monkeypatch):
    folder = tmp_path / "toy" / "toys-v1" / "seed-0"
    Toy(learning_rate=0.2).fit([toy_task], COST, steps=1).save(folder)
    Toy(weights=folder, learning_rate=0.2)
    with pytest.raises(InputError, match=r"learning_rate=0\.3 is a setting of training; these weights were .*=0\.2"):
        Toy(weights=folder, learning_rate=0.3)
    with pytest.raises(InputError, match="training starts from random weights: leave out weights="):
        Toy.load(folder).fit([toy_task], COST, steps=1)
    with pytest.raises(InputError, match=r"^no weights of solver 'toy' ship .*'shardgym fit toy,learning_rate=0\.3 --"):
        Toy(learning_rate=0.3).check_ready(COST)
    monkeypatch.setattr("baselines.learning.weights.SHIPPED", tmp_path)
    Toy(learning_rate=0.2).check_ready(COST)
    with pytest.raises(InputError, match=r"the weights that ship \(toys-v1\) were trained with learning_rate=0\.2"):
        Toy(learning_rate=0.3).check_ready(COST)
