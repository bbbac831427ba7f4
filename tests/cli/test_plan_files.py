"""Plans that people have: one device per table in JSON or CSV, wherever a command reads a plan."""

import json

import pytest
from evaluation_toys import toy_tasks

from shardgym import InputError, Shard, ShardingPlan
from shardgym.cli.plan_files import plan_to_csv, read_plan

TASK = toy_tasks(1)[0]
HALVES = ShardingPlan.table_wise(TASK, [0, 0, 1, 1])
HASH = TASK.digest
BOUNDS = "first_row,end_row,first_column,end_column"
MAPPING = {"t0": 0, "t1": 0, "t2": 1, "t3": 1}
CUT = ShardingPlan.of(TASK, [*HALVES.shards[:3], Shard("t3", (0, 5), (0, 4), 0), Shard("t3", (5, 10), (0, 4), 1)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.json", HALVES.to_json()),
        ("plan.json", json.dumps(MAPPING)),
        ("plan.json", f"\ufeff{HALVES.to_json()}"),
        ("plan.csv", "table,devices\nt0,0\nt1,0\nt2,1\nt3,1\n"),
        ("plan.CSV", "\ufeffdevices, table\r\n0,t0\r\n\r\n0,t1\r\n1,t2\r\n1,t3\r\n"),
        ("plan.csv", f"table,devices,{BOUNDS}\nt0,0,,,,\nt1,0,,,,\nt2,1,0,10,0,4\nt3,1,,,,\n"),
        ("plan.csv", plan_to_csv(TASK, HALVES)),
    ],
)
def test_the_same_plan_in_every_form(here, name, text):
    (here / name).write_text(text)
    assert read_plan(name, TASK) == HALVES


def test_cut_tables_come_back_from_csv(here, output_of):
    (here / "plan.csv").write_text(plan_to_csv(TASK, CUT))
    assert read_plan("plan.csv", TASK) == CUT
    assert "plan.csv: expected a task, which is first;" in output_of(["plan", "show", "plan.csv", "task.json"], 2).err


BAD = [
    ("plan.json", '{"shards": []}', "task_hash: Field required"),
    ("plan.json", HALVES.to_json().replace(HASH, "0" * 64), "the plan is for task 000000000000, not for .*: g"),
    ("plan.json", '{"schema": 0}', "'schema' is not a table of the task"),
    ("plan.json", "[]", 'expected a plan, or {"TABLE": DEVICE, ...}, got'),
    ("plan.json", '{"modules": {}, "schema": "shardgym.torchrec_plan/1"}', "got a plan of TorchRec: convert it with"),
    ("plan.json", TASK.to_json(), "expected a plan of ShardGym, got a task: give it as TASK"),
    ("plan.json", json.dumps(MAPPING | {"t9": 0}), "'t9' is not a table of the task"),
    ("plan.json", '{"t0": 0, "t1": 0}', r"table 't2' has no device \(2 of the task are missing\)"),
    ("plan.json", json.dumps(MAPPING | {"t3": "1"}), "table 't3': Shard: devices.0: expected an integer, got '1'"),
    ("plan.csv", "", "expected the columns table,devices or table,devices,first_row"),
    ("plan.csv", "t0,0\nt1,0\n", "expected the columns table,devices or .*, got t0,0"),
    ("plan.csv", "table,devices,first_row\nt0,0,0\n", "line 2: expected all of first_row,end_row"),
    ("plan.csv", "table,devices\nt0,0\nt1\n", r"line 3: expected 2 cells \(table,devices\)"),
    ("plan.csv", "table,devices\nt0,gpu0\n", "line 2: expected integers, with blanks between devices: .*'gpu0'"),
    ("plan.csv", plan_to_csv(TASK, CUT).replace("5,10", "5,5"), "line 6, table 't3': .* expected start < end"),
    ("plan.csv", 'table,devices\n"t0,0\n', "not valid CSV"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_a_file_that_is_no_plan_for_the_task_is_refused(here, output_of, name, text, message):
    (here / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_plan(name, TASK)
    assert output_of(["plan", "show", "task.json", name], 2).err.startswith(f"shardgym: error: {name}")
