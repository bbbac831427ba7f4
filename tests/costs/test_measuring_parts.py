"""The parts of measuring that need no kernel: settings, order, statistics, the machine's memory and names."""

import dataclasses
import importlib.util
import pickle
import random

import numpy as np
import pytest

from shardgym.costs import make_cost
from shardgym.costs.fbgemm.cost import FbgemmCost, device_notes
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.costs.fbgemm.rounds import interleaved, mean_of_medians, relative_error
from shardgym.errors import InputError, MissingDependencyError
from shardgym.machine import available_bytes, processor, slug
from shardgym.tables.table import EmbeddingTable


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"device": "tpu"}, "device='tpu': expected one of cpu, cuda"),
        ({"rounds": 1}, "rounds 1 is not a whole number from 2 on"),
        ({"comm": "guessed"}, "comm='guessed': expected one of auto, measured, modelled"),
        ({"timeout_s": float("nan")}, "timeout_s=nan"),
    ],
)
def test_bad_settings_are_refused_with_what_was_expected(setting, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        FbgemmCost(**setting)


def test_a_missing_fbgemm_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"shardgym\[cpu\]"):
        make_cost("fbgemm")
    with pytest.raises(MissingDependencyError, match=r"shardgym\[gpu\]"):
        make_cost("fbgemm", device="cuda")


def test_settings_make_the_same_model_again_and_survive_pickling(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    model = make_cost("fbgemm", rounds=3, comm="modelled")
    assert make_cost("fbgemm", **model.settings()).settings() == model.settings()
    assert pickle.loads(pickle.dumps(model)).settings() == model.settings()


def test_rounds_cover_everything_in_changing_order():
    order = list(interleaved(range(20), 3, random.Random(0), failed=set()))
    rounds = [order[i : i + 20] for i in (0, 20, 40)]
    assert all(sorted(part) == list(range(20)) for part in rounds)
    assert rounds[0] != rounds[1] != rounds[2]


def test_what_failed_is_not_tried_again():
    failed = set()
    seen = []
    for key in interleaved("ab", 3, random.Random(0), failed):
        seen.append(key)
        failed.add("a") if key == "a" else None
    assert sorted(seen) == ["a", "b", "b", "b"]


def test_the_centre_is_the_mean_over_work_of_the_median_over_rounds():
    # Step 0 takes 1, 2, 9 (median 2), step 1 takes 10, 10, 40 (median 10).
    assert mean_of_medians(np.array([[1.0, 10.0], [2.0, 10.0], [9.0, 40.0]])) == pytest.approx(6.0)


def test_noise_is_about_the_standard_error_of_the_total():
    # 25 rounds of a normal time with 10 % spread: the median has about 1.25 * 10 % / 5 = 2.5 %.
    times = np.random.default_rng(0).normal(100, 10, size=25)
    assert relative_error(lambda rows: np.array([[np.median(times[rows])], [1.0]]), 25) == pytest.approx(0.025, rel=0.5)
    assert relative_error(lambda rows: np.zeros((2, 5)), 3) == 0


def test_free_memory_is_that_of_the_machine_or_of_the_tightest_group(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert available_bytes(proc, groups) == 4000 * 1024
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (groups / "a" / "b").mkdir(parents=True)
    (groups / "a" / "b" / "memory.max").write_text("max\n")
    (groups / "a" / "b" / "memory.current").write_text("10\n")
    assert available_bytes(proc, groups) == 4000 * 1024
    (groups / "a" / "memory.max").write_text("3000\n")
    (groups / "a" / "memory.current").write_text("1000\n")
    assert available_bytes(proc, groups) == 2000


def test_free_memory_knows_the_older_kind_of_group(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemAvailable:    4000 kB\n")
    (proc / "self" / "cgroup").write_text("7:cpu:/\n4:memory:/x\n")
    (groups / "memory" / "x").mkdir(parents=True)
    (groups / "memory" / "x" / "memory.limit_in_bytes").write_text("5000\n")
    (groups / "memory" / "x" / "memory.usage_in_bytes").write_text("6000\n")
    assert available_bytes(proc, groups) == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-xeon"),
        ("AMD EPYC 7B12 64-Core Processor", "amd-epyc-7b12"),
        ("NVIDIA H200", "nvidia-h200"),
    ],
)
def test_hardware_names_become_tags(name, expected):
    assert slug(name) == expected


def processor_of(folder, **told):
    """Two cores, of which Linux says the same."""
    names = {"vendor": "vendor_id", "family": "cpu family", "name": "model name"}
    core = "".join(f"{names.get(field, field)}\t: {value}\n" for field, value in told.items())
    path = folder / f"cpuinfo-{len(list(folder.iterdir()))}"
    path.write_text(f"{core}\n{core}")
    return processor(path)


def test_processors_of_two_generations_under_one_name_have_two_tags(tmp_path):
    alike = {
        "vendor": "AuthenticAMD",
        "name": "AMD EPYC",
        "flags": "sse4_2 avx2 fma avx512f avx512bw avx512dq avx512vl",
    }
    assert processor_of(tmp_path, family=26, model=2, **alike) == "amd-family26-model2-avx512"
    assert processor_of(tmp_path, family=25, model=17, **alike) == "amd-family25-model17-avx512"


def test_instructions_that_choose_kernels_are_in_the_tag(tmp_path):
    intel = {"vendor": "GenuineIntel", "family": 6, "model": 143, "name": "Intel(R) Xeon(R)"}
    assert processor_of(tmp_path, flags="avx2 fma avx512f", **intel) == "intel-family6-model143-avx2"
    assert processor_of(tmp_path, flags="sse4_2", **intel) == "intel-family6-model143-scalar"


def test_a_processor_without_a_family_has_its_name_in_the_tag(tmp_path):
    assert processor_of(tmp_path, name="ARM Neoverse-V2", Features="sve") == "arm-neoverse-v2"
    assert processor(tmp_path / "missing")


def test_gpu_memory_counts_weights_state_values_ids_and_their_sorting():
    from shardgym.costs.fbgemm.cuda import gpu_bytes

    shard = ShardSpec(EmbeddingTable("t", 1000, 8, 2.0), (0, 1000), 8)
    shard_set = ShardSet((shard,), 10, "fp16", "adam")
    # Weights 8,000 x 2, Adam 16,000 x 4, four copies of 10 x 8 halves, twice 3 batches of 10 x (2 + 1) 8-byte numbers
    # (drawn and merged), and what sorting one batch takes, five times as much as the batch.
    assert gpu_bytes(shard_set, 3) == 16_000 + 64_000 + 4 * 160 + 2 * 720 + 5 * 240


@pytest.mark.parametrize(
    ("device", "hardware", "is_noted"),
    [
        ("cpu-core", "cpu-amd-epyc-8c", False), ("a100", "cpu-amd-epyc-8c", True), ("h200", "cuda-nvidia-h200", False),
        ("cpu-core", "cuda-nvidia-h200", True),
    ],
)  # fmt: skip
def test_compute_on_other_hardware_than_the_tasks_is_noted(toy_task, device, hardware, is_noted):
    task = dataclasses.replace(toy_task, topology=dataclasses.replace(toy_task.topology, device=device))
    note = f"task is for '{device}' devices; compute was measured on {hardware}"
    assert device_notes(task, hardware) == ((note,) if is_noted else ())
