"""Ranking of whole plans from the devices that were measured of them, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shardgym.costs.simulator.samples import ComputeSamples, Labels
from shardgym.training import assess
from shardgym.training.assess import rank_plans
from shardgym.training.settings import PLAN_DEVICES, PLANS_PER_TASK


def samples_of(rows):
    """Rows of (plan, device, repeat, measured ms)."""
    count = len(rows)
    ids = np.array([f"compute/plans/{plan * PLAN_DEVICES + device}/{repeat}" for plan, device, repeat, _ in rows])
    role, collection = np.repeat("plans", count), np.repeat("a", count)
    labels = Labels(ids, role, ids, np.zeros(count, int), np.zeros(count), collection)
    ms = np.array([[0.0, row[3]] for row in rows])
    kinds = np.array(["fp32"] * count)
    return ComputeSamples(labels, None, np.ones(count, int), ms, kinds, kinds, kinds)


def devices(plan, slowest, repeat=0):
    return [(plan, 0, repeat, slowest), *((plan, device, repeat, 1.0) for device in range(1, PLAN_DEVICES))]


@pytest.fixture
def predicting(monkeypatch):
    """Let the model predict given ms per plan on its first device, 1 elsewhere."""

    def install(predicted):
        def predict(predictor, samples):
            numbers = [int(name.split("/")[2]) for name in samples.labels.sample_id]
            ms = [predicted[n // PLAN_DEVICES] if n % PLAN_DEVICES == 0 else 1.0 for n in numbers]
            return np.array([[0.0, value] for value in ms])

        monkeypatch.setattr(assess, "predict_compute", predict)

    return install


def test_the_slowest_device_counts_and_plans_of_a_task_are_ranked(predicting):
    predicting({0: 4.0, 1: 2.0, 2: 6.0})
    found = rank_plans(None, samples_of([*devices(0, 2.0), *devices(1, 4.0), *devices(2, 8.0)]))["plans"]
    assert found["kendall_tau"] == pytest.approx(1 / 3)
    assert found["mape"] == pytest.approx((1.0 + 0.5 + 0.25) / 3)
    assert (found["samples"], found["noise_pairs"], found["noise_mape"], found["mape_over_noise"]) == (3, 0, None, None)


def test_tasks_are_ranked_apart_and_averaged(predicting):
    far = PLANS_PER_TASK
    predicting({0: 2.0, 1: 4.0, 2: 8.0, far: 30.0, far + 1: 20.0, far + 2: 10.0})
    measured = {0: 2.0, 1: 4.0, 2: 8.0, far: 10.0, far + 1: 20.0, far + 2: 30.0}
    rows = [row for plan, ms in measured.items() for row in devices(plan, ms)]
    assert rank_plans(None, samples_of(rows))["plans"]["kendall_tau"] == pytest.approx(0.0)


def test_plans_of_two_collections_have_the_same_numbers_and_are_ranked_apart(predicting):
    predicting({0: 2.0, 1: 4.0, 2: 8.0})
    rising, falling = ([row for plan in range(3) for row in devices(plan, ms[plan])] for ms in ((2, 4, 8), (8, 4, 2)))
    both = samples_of(rising + falling)
    labels = dataclasses.replace(both.labels, collection=np.repeat(["a", "b"], len(rising)))
    found = rank_plans(None, dataclasses.replace(both, labels=labels))["plans"]
    assert (found["samples"], found["kendall_tau"]) == (6, pytest.approx(0.0))


def test_repeats_are_the_noise(predicting):
    predicting({0: 2.0, 1: 4.0, 2: 8.0})
    plans = [(n, factor * 2.0 ** (n + 1), repeat) for n in range(3) for factor, repeat in ((1.0, 0), (1.1, 1))]
    rows = [row for plan in plans for row in devices(*plan)]
    found = rank_plans(None, samples_of(rows))["plans"]
    assert found["noise_mape"] == pytest.approx(0.1)
    assert (found["mape"], found["mape_over_noise"], found["noise_kendall_tau"]) == (0.0, 0.0, pytest.approx(1.0))


def test_a_plan_that_lacks_a_device_is_left_out_and_too_few_plans_are_nothing(predicting):
    predicting({0: 1.0, 1: 1.0, 2: 1.0})
    assert rank_plans(None, samples_of([*devices(0, 2.0), *devices(1, 4.0), *devices(2, 8.0)[1:]])) == {}
    assert rank_plans(None, samples_of([])) == {}
