"""A solver is handed the oracle: nothing of the judge can be reached from there."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import types

import gymnasium
import numpy as np
import pytest
from evaluation_toys import ToySuite

from shardgym import InputError, ShardingPlan, make_cost
from shardgym.conformance import check_solver
from shardgym.evaluation import evaluate, solver_spec


def reachable(root: object) -> list[object]:
    """Everything that an object refers to, directly or not; not through modules, classes and functions' globals."""
    seen, stack, found = set(), [root], []
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, types.ModuleType | type | types.FunctionType | types.CodeType):
            continue
        seen.add(id(thing))
        found.append(thing)
        stack.extend(gc.get_referents(thing))
    return found


def arrays(root: object) -> list[np.ndarray]:
    return [thing for thing in reachable(root) if isinstance(thing, np.ndarray)]


@pytest.fixture
def used_oracle(oracle, judge, task, plans):
    """An oracle that was used in every way, while a judge of the same folder was used too."""
    judge.evaluate(task, plans)
    oracle.evaluate(task, plans)
    oracle.familiarity(task, plans)
    return oracle


def test_the_walk_finds_the_oracles_own_weights(used_oracle):
    found = {array.tobytes() for array in arrays(used_oracle)}
    assert used_oracle._weights.networks["compute"]["head.0.weight"].tobytes() in found


def test_no_public_call_of_the_oracle_returns_or_holds_anything_of_the_judge(used_oracle, judge, task, plans):
    """Every public attribute is read, and called where it can be with what a solver has."""
    secrets = {a.tobytes() for params in judge._weights.networks.values() for a in params.values() if a.size > 4}
    given = {
        "evaluate": (task, plans),
        "score": (task, plans),
        "familiarity": (task, plans),
        "no_cost": (task, "why"),
    }
    results: list[object] = [used_oracle]
    called = set()
    for name in (n for n in dir(used_oracle) if not n.startswith("_")):
        value = getattr(used_oracle, name)
        results.append(value)
        if callable(value):
            results.append(value(*given.get(name, ())))
            called.add(name)
    assert set(given) | {"settings", "close"} <= called
    for result in results:
        texts = [thing for thing in reachable(result) if isinstance(thing, str)]
        assert judge.version not in texts
        assert judge._weights.digest not in texts
        assert not {array.tobytes() for array in arrays(result)} & secrets
        assert not any(thing is judge or thing is judge._weights for thing in reachable(result))


def test_the_oracles_settings_make_an_oracle(used_oracle):
    assert used_oracle.settings().get("role", "oracle") == "oracle"
    assert used_oracle.role == "oracle"


def test_weights_of_the_judge_do_not_load_as_an_oracle(model):
    with pytest.raises(InputError, match="role: these weights are of 'judge', expected 'oracle'"):
        make_cost("simulator", weights=model / "judge.safetensors")


def test_oracle_and_judge_disagree_about_some_pair_of_plans(oracle, judge, task):
    """Two architectures on disjoint samples: not the same function in disguise."""
    rng = np.random.default_rng(4)
    plans = [ShardingPlan.table_wise(task, rng.integers(0, 3, 12).tolist()) for _ in range(60)]
    ours, theirs = ([c.total_ms for c in cost.evaluate(task, plans)] for cost in (oracle, judge))
    assert np.argsort(ours).tolist() != np.argsort(theirs).tolist()
    assert np.corrcoef(ours, theirs)[0, 1] > 0.8


class Prying:
    """A solver that tries to reach the judge; `tries` are functions of (model folder, task, plan)."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}

    def solve(self, task, cost, seed=0):
        plan = ShardingPlan.table_wise(task, [n % 3 for n in range(12)])
        assert cost.role == "oracle"
        assert cost.evaluate(task, [plan])[0].feasible
        for name, reach in TRIES.items():
            try:
                self.answers[name] = reach(self.model, self.kept, task, plan)
            except InputError as error:
                self.answers[name] = error
        assert self.answers.keys() == TRIES.keys()
        for name, answer in self.answers.items():
            assert "scores plans: a solver may query the oracle" in str(answer), name
        return plan


def in_a_thread(model, kept, task, plan):
    """A thread that the solver starts."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make_cost, "simulator", weights=model, role="judge").result()


def in_a_process(model, kept, task, plan):
    """A process of its own, which inherits nothing but the environment."""
    code = f"import shardgym; print(shardgym.make_cost('simulator', weights={str(model)!r}, role='judge').version)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(done.stderr.splitlines()[-1])
    return done.stdout


TRIES = {
    "by role": lambda model, kept, task, plan: make_cost("simulator", weights=model, role="judge"),
    "by file": lambda model, kept, task, plan: make_cost(
        "simulator", weights=model / "judge.safetensors", role="judge"
    ),
    "made before": lambda model, kept, task, plan: kept.evaluate(task, [plan]),
    "familiarity of one made before": lambda model, kept, task, plan: kept.familiarity(task, [plan]),
    "in a thread": in_a_thread,
    "in a process": in_a_process,
    "in an environment": lambda model, kept, task, plan: gymnasium.make(
        "ShardGym/TableWise-v0", tasks=[task], cost="simulator", cost_settings={"weights": model, "role": "judge"}
    ),
}


@pytest.mark.parametrize("isolate", [True, False])
def test_a_solver_in_a_run_reaches_the_judge_by_no_public_call(model, judge, task, tmp_path, monkeypatch, isolate):
    """It fails, and so does its record, when one of its tries succeeds."""

    def solver(name):
        made = Prying()
        made.model, made.kept = model, judge
        return made

    monkeypatch.setattr(solver_spec, "make_solver", solver)
    (record,) = evaluate(
        ToySuite([task]), ["my:Prying"], out=tmp_path, judge=judge, oracle="simulator",
        oracle_settings={"weights": model}, isolate=isolate,
    )  # fmt: skip
    assert record.status == "ok", record.reason
    assert record.cost == judge.evaluate(task, [record.plan])[0]
    assert make_cost("simulator", weights=model, role="judge").version == judge.version


def test_a_judge_is_refused_as_the_oracle_of_a_run(model, judge, task, tmp_path):
    other = make_cost("simulator", weights=model, role="judge")
    with pytest.raises(InputError, match="oracle 'simulator' has role 'judge'"):
        evaluate(ToySuite([task]), ["random"], out=tmp_path, judge=judge, oracle=other)


def test_an_oracle_does_not_judge_those_who_query_it(model, oracle, task, tmp_path):
    with pytest.raises(InputError, match="judge 'simulator' has the weights of the oracle"):
        evaluate(ToySuite([task]), ["random"], out=tmp_path, judge=make_cost("simulator", weights=model), oracle=oracle)
    (record,) = evaluate(
        ToySuite([task]), ["random"], out=tmp_path, judge=make_cost("simulator", weights=model), oracle="roofline"
    )
    assert record.status == "ok"


class Lurking:
    """A solver whose thread goes on asking for the judge when `solve` has returned."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.asked, self.done = threading.Event(), threading.Event()
        self.ask()

    def ask(self) -> None:
        for reach in (TRIES["by role"], TRIES["made before"]):
            try:
                self.answers.append(reach(self.model, self.kept, self.task, self.plan))
            except InputError as error:
                self.answers.append(error)
        self.asked.set()

    def lurk(self) -> None:
        while not self.done.is_set():
            self.ask()

    def solve(self, task, cost, seed=0):
        threading.Thread(target=self.lurk, daemon=True).start()
        return self.plan


def wait_for_the_thread(solver):
    """Return when the thread has begun to ask and has been answered."""
    for _ in range(2):
        solver.asked.clear()
        assert solver.asked.wait(30)


def test_a_thread_that_outlives_solve_finds_the_judge_closed_until_the_run_ends(
    model, judge, task, plans, tmp_path, monkeypatch
):
    Lurking.model, Lurking.kept, Lurking.task, Lurking.plan = model, judge, task, plans[0]
    made, scored = [], []

    def solver(name):
        made.append(Lurking())
        return made[0]

    evaluate_one = judge.evaluate

    def evaluate_and_wait(task, plans):
        if threading.current_thread() is not threading.main_thread():
            return evaluate_one(task, plans)
        before = evaluate_one(task, plans)
        wait_for_the_thread(made[0])
        scored.append(before)
        assert evaluate_one(task, plans) == before
        return before

    monkeypatch.setattr("shardgym.evaluation.solver_spec.make_solver", solver)
    monkeypatch.setattr(judge, "evaluate", evaluate_and_wait)
    try:
        (record,) = evaluate(
            ToySuite([task]), ["my:Lurking"], out=tmp_path, judge=judge, oracle="simulator",
            oracle_settings={"weights": model}, isolate=False,
        )  # fmt: skip
    finally:
        made[0].done.set()
    assert record.status == "ok", record.reason
    assert len(scored) == 1
    answers = made[0].answers
    in_time = answers[: len(answers) - 2]  # the last round may have been after the run
    assert len(in_time) >= 4
    assert all("scores plans: a solver may query the oracle" in str(answer) for answer in in_time)
    assert make_cost("simulator", weights=model, role="judge").version == judge.version


class Nesting:
    """A solver that starts a run of its own, to have its plan scored."""

    def solve(self, task, cost, seed=0):
        plan = ShardingPlan.table_wise(task, [n % 3 for n in range(12)])
        settings = {"weights": self.model, "role": "judge"}
        evaluate(
            ToySuite([task]), ["random"], out=self.folder, judge="simulator", judge_settings=settings,
            oracle="roofline",
        )  # fmt: skip
        return plan


def test_a_run_that_a_solver_starts_is_refused_the_judge(model, judge, task, tmp_path, monkeypatch):
    solver = Nesting()
    solver.model, solver.folder = model, tmp_path / "inner"
    make = solver_spec.make_solver
    monkeypatch.setattr(solver_spec, "make_solver", lambda name: solver if name == "my:Nesting" else make(name))
    (record,) = evaluate(ToySuite([task]), ["my:Nesting"], out=tmp_path / "outer", judge=judge, oracle="roofline")
    assert record.status == "error"
    assert "until the run that goes on has ended, only that run may ask it" in str(record.reason)


class Interrupting:
    def solve(self, task, cost, seed=0):
        raise KeyboardInterrupt


def test_judges_are_open_again_after_a_run_that_was_interrupted(model, judge, task, plans, tmp_path, monkeypatch):
    monkeypatch.setattr(solver_spec, "make_solver", lambda name: Interrupting())
    with pytest.raises(KeyboardInterrupt):
        evaluate(ToySuite([task]), ["my:Interrupting"], out=tmp_path, judge=judge, oracle="roofline", isolate=False)
    assert judge.evaluate(task, plans[:1])[0].feasible


def test_a_run_makes_its_judge_by_name_and_scores_as_a_judge_outside_of_it(model, judge, task, tmp_path):
    settings = {"weights": model, "role": "judge"}
    for run in ("first", "second"):
        (record,) = evaluate(
            ToySuite([task]), ["random"], out=tmp_path / run, judge="simulator", judge_settings=settings,
            oracle="roofline",
        )  # fmt: skip
        assert record.cost == judge.evaluate(task, [record.plan])[0]


def test_a_solver_that_is_checked_reaches_no_judge(model):
    answers = []

    class Asking:
        def __init__(self):
            self.solve(None, None)

        def solve(self, task, cost, seed=0):
            try:
                answers.append(make_cost("simulator", weights=model, role="judge"))
            except InputError as error:
                answers.append(error)

    check_solver(Asking)
    assert len(answers) > 5
    assert all("scores plans: a solver may query the oracle" in str(answer) for answer in answers)
    assert make_cost("simulator", weights=model, role="judge").role == "judge"


def test_a_solver_is_not_checked_with_a_judge(judge):
    with pytest.raises(InputError, match="cost 'simulator' has role 'judge', which is for scoring"):
        check_solver("random", judge)
