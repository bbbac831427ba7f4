"""Engines do every job once, whatever becomes of their workers, and runs on them have the records of a plain run."""

import dataclasses
import functools
import json

import evaluation_toys
import pytest
from engine_toys import doubling, dying, refusing
from evaluation_toys import ToySuite, toy_tasks

from shardgym import InputError, MeasurementError, evaluate
from shardgym.cli import main
from shardgym.engines import Engine, make_engine

JOBS = [1, 2, 3, 4, 5]
SOLVERS = ["lpt", "evaluation_toys:Crashes"]


def engine(name):
    return make_engine(name, workers=None if name == "here" else 2)


@pytest.mark.parametrize("name", ["here", "loky"])
def test_every_job_is_done_once_by_workers_that_are_opened_once(name, tmp_path, capfd):
    found = dict(engine(name).run(functools.partial(doubling, str(tmp_path)), JOBS, alone=False))
    assert {job: twice for job, (_, twice) in found.items()} == {job: 2 * job for job in JOBS}
    processes = {process for process, _ in found.values()}
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{what}.{process}" for what in ("opened", "closed") for process in processes
    }
    if name == "loky":
        assert capfd.readouterr().out == ""


def test_jobs_of_a_lost_worker_are_done_again_once(tmp_path):
    found = list(engine("loky").run(functools.partial(dying, str(tmp_path), 1), JOBS, alone=False))
    assert sorted((job, twice) for job, (_, twice) in found) == [(job, 2 * job) for job in JOBS]
    assert len(list(tmp_path.glob("died.*"))) == 1
    with pytest.raises(MeasurementError, match=r"^3 crashed two workers; last error: "):
        list(engine("loky").run(functools.partial(dying, str(tmp_path), 100), JOBS, alone=False))


def test_an_error_on_purpose_comes_back_as_its_line():
    with pytest.raises(InputError, match=r"^unknown job '\d': known: other$"):
        list(engine("loky").run(refusing, JOBS, alone=False))


def test_what_measures_has_its_machine_to_itself(tmp_path):
    opens = functools.partial(doubling, str(tmp_path))
    with pytest.raises(InputError, match="workers=2: jobs that measure disturb each other"):
        list(engine("loky").run(opens, JOBS, alone=True))
    found = list(make_engine("loky").run(opens, JOBS, alone=True))
    assert [job for job, _ in found] == JOBS
    assert len({process for _, (process, _) in found}) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "dask"}, "unknown engine 'dask': known: here, loky, ray"),
        ({"name": "here", "workers": 2}, "workers=2: engine 'here' has one worker; use engine 'loky' for several"),
        ({"name": "loky", "address": "head:6379"}, "address: engine 'loky' joins no cluster"),
    ],
)
def test_what_makes_no_engine_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        make_engine(**settings)


def comparable(results):
    """Return results without what differs between two runs of the same: times, and whether files are being changed."""
    same = {"solve_time_s": 0.0, "cpu_time_s": None, "started": "now"}
    changed = [dataclasses.replace(result, **same, commit=result.commit.rstrip("+")) for result in results]
    return [json.loads(result.to_json()) for result in changed]


def run_toys(out, name, **settings):
    costs = {"judge": "roofline", "oracle": "roofline"} | settings.pop("costs", {})
    return evaluate(ToySuite(toy_tasks(3)), SOLVERS, out=out, **costs, engine=name, **settings)


def test_a_run_has_the_records_of_a_plain_one_in_any_order_and_its_messages(tmp_path, capfd):
    plain = run_toys(tmp_path / "plain", Engine())
    capfd.readouterr()
    side_by_side = run_toys(tmp_path / "loky", engine("loky"))
    assert capfd.readouterr().err.count("shardgym: about to crash\n") == 3
    for one, other in zip(comparable(side_by_side), comparable(plain), strict=True):
        assert {key: (one[key], other[key]) for key in one if one[key] != other[key]} == {}
    lines = [(tmp_path / name / "records.jsonl").read_text().splitlines() for name in ("plain", "loky")]
    assert len(lines[0]) == len(lines[1]) == 3 * len(SOLVERS)
    assert "Traceback" in (tmp_path / "loky/errors.log").read_text()
    # Nothing is left to do.
    again = run_toys(tmp_path / "loky", engine("loky"))
    assert [result.started for result in again] == [result.started for result in side_by_side]


def test_objects_stay_in_their_process(tmp_path):
    with pytest.raises(InputError, match="cost 'evaluation_toys:CountCost' is an object, but engine 'loky' makes"):
        run_toys(tmp_path, engine("loky"), costs={"judge": evaluation_toys.CountCost()})


def test_the_command_line_takes_an_engine(tmp_path, capsys):
    arguments = ["run", "--suite", "tiny-v1", "--cost", "roofline", "--out", str(tmp_path)]
    for options, said in ((["--engine", "dask"], "'dask' is not one of"), (["--workers", "2"], "'here' has one")):
        assert main([*arguments, *options]) == 2
        assert said in capsys.readouterr().err
