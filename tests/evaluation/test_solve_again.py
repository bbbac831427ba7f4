"""verify(solve=True): whether a solver makes the plan that stands under its name."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
from evaluation_toys import CountCost, GivesUp, Halves, ToySuite, toy_tasks
from verify_toys import TOY, edit

from shardgym import ShardingPlan
from shardgym.cli import main
from shardgym.evaluation import SolverSpec, evaluate, read_records, verify
from shardgym.evaluation.verify.solve_again import equal_but_for_names

THIS = "test_solve_again:"


class Changeable:
    """Puts most tables on one device, which a test can change as a new version of a solver would."""

    device = 0

    def solve(self, task, cost, seed=0):
        return ShardingPlan.table_wise(task, [self.device] * 3 + [1 - self.device])


class Learned(Changeable):
    """Has weights, which were trained for one and a half minutes."""

    weights_digest = "a" * 64
    training_time_s = 90.0


class NeedsWarmth:
    """Solves only after it has warmed up."""

    ready = False

    def warm_up(self, task, cost):
        self.ready = True

    def solve(self, task, cost, seed=0):
        if not self.ready:
            raise RuntimeError("cold")
        return ShardingPlan.table_wise(task, [0, 0, 0, 1])


class Wanders:
    """Changes its task on one seed, and always the current folder."""

    def solve(self, task, cost, seed=0):
        os.chdir("/")
        plan = ShardingPlan.table_wise(task, [0, 0, 0, 1])
        if seed == 1:
            object.__setattr__(task, "batch_size", 1)
        return plan


SOLVERS = (SolverSpec("random", label="dice"), TOY + "Halves", TOY + "GivesUp", THIS + "Changeable")
TRUST = [CountCost.name, TOY + "Halves", TOY + "GivesUp", THIS + "Changeable"]


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Records of four solvers on two tasks, one of which fails, with an oracle that can be asked again."""
    monkeypatch.setattr(Changeable, "device", 0)
    suite = ToySuite([dataclasses.replace(t, batch_size=64) for t in toy_tasks(2)])
    evaluate(suite, SOLVERS, out=tmp_path, judge=CountCost.name, oracle="roofline", seeds=[3])
    return tmp_path


def check(folder, trust=TRUST):
    return verify([folder], trust=trust, solve=True)


def test_the_same_plans_and_failures_are_found_again(records):
    report = check(records)
    assert {row.status for row in report.rows} == {"ok"}
    assert report.verdict == "verified"
    told = {row.solver: row.reason for row in report.rows}
    assert told["dice"].endswith("; solved again: the same plan")
    assert told[TOY + "GivesUp"].startswith("solved again: fails as recorded, infeasible: ")
    assert verify([records], trust=TRUST).verdict == "partly verified"  # failures hold nothing to score


def test_a_plan_of_another_solver_is_found(records):
    """Its cost is right: scoring alone finds nothing."""
    rows = [json.loads(line) for line in (records / "records.jsonl").read_text().splitlines()]
    other = next(r for r in rows if r["solver"] == TOY + "Halves" and r["task_index"] == 0)
    edit(records, 1, lambda record: record.update(plan=other["plan"], cost=other["cost"]))
    assert verify([records], trust=TRUST).ok
    report = check(records)
    assert [row.status for row in report.rows].count("mismatch") == 1
    assert report.rows[0].reason == "solved again: another plan, with the same processor, versions and source"
    assert not report.ok


def test_a_failure_that_did_not_happen_is_found(records):
    edit(records, 2, lambda record: record.update(
        status="infeasible", reason="no plan found", plan=None, cost=None
    ))  # fmt: skip
    assert verify([records], trust=TRUST).ok
    assert check(records).rows[1].reason == "solved again: a plan, not as recorded"


def test_a_solver_that_has_changed_is_found(records, monkeypatch):
    monkeypatch.setattr(Changeable, "device", 1)
    wrong = [row for row in check(records).rows if row.status == "mismatch"]
    assert [row.solver for row in wrong] == [THIS + "Changeable"] * 2


def test_a_plan_where_there_was_none_is_found(records, monkeypatch):
    monkeypatch.setattr(GivesUp, "solve", Halves.solve)
    wrong = [row.solver for row in check(records).rows if row.status == "mismatch"]
    assert wrong == [TOY + "GivesUp"] * 2


def test_solvers_that_are_not_trusted_are_not_imported_and_named(records):
    report = check(records, [CountCost.name, TOY + "Halves", TOY + "GivesUp"])
    name = THIS + "Changeable"
    assert report.gaps == [f"2 not solved again: the solver is '{name}': to import it, pass --trust {name}"]
    assert (report.ok, report.verdict) == (True, "partly verified")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"time_limit_s": 5.0}, "with a time limit a solver need not make the same plan"),
        ({"oracle": "crystal_ball"}, "its oracle cannot be made here: unknown cost 'crystal_ball'"),
    ],
)
def test_what_cannot_be_solved_again_is_a_gap(records, change, why):
    for number in range(1, 9):
        edit(records, number, lambda record: record.update(change))
    info = json.loads((records / "run.json").read_text())
    (records / "run.json").write_text(json.dumps(info | change))
    report = check(records)
    assert len(report.gaps) == 1
    assert report.gaps[0].startswith(f"8 not solved again: {why}")
    assert {row.status for row in report.rows} == {"ok", "failure"}


def test_without_the_run_nobody_knows_the_oracle(records):
    (records / "run.json").unlink()
    assert any(gap.startswith("8 not solved again: no run.json of ") for gap in check(records).gaps)


def test_solvers_warm_up_as_in_a_run(tmp_path):
    suite = ToySuite([dataclasses.replace(t, batch_size=64) for t in toy_tasks(2)])
    evaluate(suite, [THIS + "NeedsWarmth"], out=tmp_path, judge=CountCost.name, oracle="roofline")
    report = verify([tmp_path], trust=[CountCost.name, THIS + "NeedsWarmth"], solve=True)
    assert report.verdict == "verified"


def test_folders_and_tasks_are_kept_from_solvers_as_in_a_run(tmp_path, monkeypatch):
    """The path is relative; the record of seed 1 is the error of a solver that changed its task."""
    monkeypatch.chdir(tmp_path)
    suite = ToySuite([dataclasses.replace(t, batch_size=64) for t in toy_tasks(2)])
    evaluate(suite, [THIS + "Wanders"], out="run", judge=CountCost.name, oracle="roofline", seeds=[0, 1])
    assert [r.status for r in read_records("run/records.jsonl")] == ["ok", "error"] * 2
    report = verify("run", trust=[CountCost.name, THIS + "Wanders"], solve=True)
    assert report.verdict == "verified"


def test_seeds_are_those_of_the_records(records):
    assert {result.seed for result in read_records(records / "records.jsonl")} == {3}
    edit(records, 1, lambda record: record.update(seed=4))
    info = json.loads((records / "run.json").read_text())
    (records / "run.json").write_text(json.dumps(info | {"seeds": [3, 4]}))
    assert check(records).rows[0].reason.startswith("solved again: another plan")


def test_on_the_command_line(tmp_path, capsys):
    out = str(tmp_path / "run")
    command = ["run", "--suite", "tiny-v1", "--limit", "2", "--cost", "roofline", "--solver", "random", "--out", out]
    assert main(command) == 0
    capsys.readouterr()
    assert main(["verify", "--solve", out]) == 0
    assert capsys.readouterr().out.count("; solved again: the same plan") == 4
    lines = (tmp_path / "run" / "records.jsonl").read_text().replace('"solver":"random"', '"solver":"size_greedy"')
    (tmp_path / "run" / "records.jsonl").write_text(lines)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(info | {"solvers": ["size_greedy", "lpt"]}))
    assert main(["verify", "-q", out]) == 0
    assert main(["verify", "-q", "--solve", out]) == 1
    assert "plans made again cost +" in capsys.readouterr().out


def store_elsewhere(folder, devices):
    """Give the first record another plan with its cost, as of other kernels; return the devices of the old one."""
    task = dataclasses.replace(toy_tasks(1)[0], batch_size=64)
    before = []

    def change(record):
        shards = sorted(ShardingPlan.from_dict(record["plan"]).shards, key=lambda shard: shard.table)
        before.extend(shard.devices[0] for shard in shards)
        plan = ShardingPlan.table_wise(task, devices)
        record.update(plan=plan.to_dict(), cost=CountCost().evaluate(task, [plan])[0].to_dict())
        record["versions"]["blas"] = "openblas Sandybridge"

    edit(folder, 1, change)
    return before


def test_elsewhere_another_plan_is_told_with_what_it_costs_and_what_differs(records):
    """One such plan of six is too much on average, as it costs half as much again."""
    assert store_elsewhere(records, [0, 1, 0, 1]) == [0, 0, 0, 1]
    report = check(records)
    row = report.rows[0]
    assert (row.status, row.solved) == ("ok", "other")
    assert row.reason.startswith("solved again: another plan, which costs 50.00% more by evaluation_toys:CountCost; ")
    assert "the record was made with others: blas openblas Sandybridge, here " in row.reason
    (told,) = report.solved_again
    assert "7 of 8 plans are the same, 1 are others, whose costs differ by +50.00% to +50.00%, +5.199% on" in told
    assert "plans made again cost +5.20% on average" in report.footer()
    assert not report.ok


def test_elsewhere_another_plan_of_the_same_cost_is_fine(records):
    store_elsewhere(records, [0, 0, 1, 0])
    report = check(records)
    assert report.ok
    assert report.rows[0].reason.startswith("solved again: another plan of the same cost; ")


def test_elsewhere_the_same_plan_on_renamed_devices_is_told(records):
    store_elsewhere(records, [1, 1, 1, 0])
    report = check(records)
    assert report.ok
    assert report.rows[0].solved == "renamed"
    assert "7 of 8 plans are the same, 1 but for the order of equal devices" in report.solved_again[0]


def test_devices_that_are_equal_may_be_renamed_and_no_others():
    [task] = toy_tasks(1)
    one = ShardingPlan.table_wise(task, [n % 2 for n in range(task.num_tables)])
    other = ShardingPlan.table_wise(task, [1 - n % 2 for n in range(task.num_tables)])
    moved = ShardingPlan.table_wise(task, [0] * task.num_tables)
    assert equal_but_for_names(task, one, other)
    assert not equal_but_for_names(task, one, moved)
    sizes = (2**40, *task.topology.memory_bytes[1:])
    unequal = dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=sizes))
    plans = [ShardingPlan.of(unequal, plan.shards) for plan in (one, other)]
    assert not equal_but_for_names(unequal, *plans)


def test_a_sample_has_so_many_of_every_file_and_does_not_depend_on_their_order(records):
    report = verify([records], trust=TRUST, solve=True, solve_sample=3)
    assert sum(row.solved is not None for row in report.rows) == 3
    assert "5 not solved again: not among the 3 of a file that were chosen" in report.gaps
    file = records / "records.jsonl"
    chosen = {row.subject for row in report.rows if row.solved is not None}
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    again = verify([records], trust=TRUST, solve=True, solve_sample=3)
    assert {row.subject for row in again.rows if row.solved is not None} == chosen


def test_a_sample_has_no_plan_that_took_long(records):
    file = records / "records.jsonl"
    stored = [json.loads(line) for line in file.read_text().splitlines()]
    for number, record in enumerate(stored):
        record["cpu_time_s"] = 3.0 if number < 6 else 1.0
    file.write_text("".join(json.dumps(record) + "\n" for record in stored))
    assert sum(row.solved is not None for row in verify([records], trust=TRUST, solve=True, solve_sample=3).rows) == 2


@pytest.fixture
def learned_records(tmp_path, monkeypatch):
    """Records of a learned solver, which a test can give other weights."""
    monkeypatch.setattr(Learned, "weights_digest", "a" * 64)
    monkeypatch.setattr(Changeable, "device", 0)
    suite = ToySuite(toy_tasks(1))
    evaluate(suite, [THIS + "Learned"], out=tmp_path, judge=CountCost.name, oracle="roofline")
    return tmp_path


def test_a_record_holds_the_digest_of_the_weights(learned_records):
    (result,) = read_records(learned_records / "records.jsonl")
    assert (result.weights_digest, result.training_time_s) == ("a" * 64, 90.0)
    (row,) = check(learned_records, [CountCost.name, THIS + "Learned"]).rows
    assert row.status == "ok"


@pytest.mark.parametrize(("digest", "at_hand"), [("b" * 64, "b" * 12), ("", "none")])
@pytest.mark.parametrize("device", [0, 1])
def test_other_weights_than_those_of_the_record_are_a_mismatch(learned_records, monkeypatch, digest, at_hand, device):
    monkeypatch.setattr(Learned, "weights_digest", digest)
    monkeypatch.setattr(Changeable, "device", device)
    (row,) = check(learned_records, [CountCost.name, THIS + "Learned"]).rows
    assert row.status == "mismatch"
    assert ("another plan" in row.reason) == (device == 1)
    assert row.reason.endswith(f"the weights of the record are {'a' * 12}, those at hand are {at_hand}")


@pytest.mark.parametrize("digest", ["", None])
def test_a_solver_without_a_digest_is_recorded_without_one(tmp_path, monkeypatch, digest):
    monkeypatch.setattr(Learned, "weights_digest", digest)
    suite = ToySuite(toy_tasks(1))
    (result,) = evaluate(suite, [THIS + "Learned"], out=tmp_path, judge=CountCost.name, oracle="roofline")
    assert (result.status, result.weights_digest) == ("ok", "")


@pytest.mark.parametrize("digest", ["abc", 3])
def test_a_digest_that_is_none_is_an_error_of_the_solver(tmp_path, monkeypatch, digest):
    monkeypatch.setattr(Learned, "weights_digest", digest)
    suite = ToySuite(toy_tasks(1))
    (result,) = evaluate(suite, [THIS + "Learned"], out=tmp_path, judge=CountCost.name, oracle="roofline")
    assert (result.status, result.plan) == ("error", None)
    assert result.reason.startswith("weights_digest of the solver: expected 64 hexadecimal digits or '', got")


def test_a_digest_that_raises_is_an_error_of_the_solver(tmp_path, monkeypatch):
    monkeypatch.setattr(Learned, "weights_digest", property(lambda solver: 1 / 0))
    suite = ToySuite(toy_tasks(1))
    (result,) = evaluate(suite, [THIS + "Learned"], out=tmp_path, judge=CountCost.name, oracle="roofline")
    assert (result.status, result.reason) == ("error", "ZeroDivisionError: division by zero")
