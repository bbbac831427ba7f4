"""Check that solvers make the same plans however arithmetic is rounded.

    python tools/check_arithmetic.py                     # compares plans of a sample, each under one kind of kernels
    python tools/check_arithmetic.py --all               # each under every kind
    python tools/check_arithmetic.py pytest tests/...    # runs a command instead, under every kind

A sample of tasks of every suite is solved with every deterministic solver under kernels for other processors, and with
other numbers of threads. The plans are compared with those in tests/data/plans_of_sample.json, which --write makes.
Kernels that this processor lacks are left out by name. Exit code 1 when a plan differs, a command fails, or nothing
could be compared.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPECTED = ROOT / "tests" / "data" / "plans_of_sample.json"

#: Solvers whose plans rest on measurements, or on a package that is not ours.
LEFT_OUT = {
    "measured_rerank": "it measures",
    "torchrec": "its arithmetic is TorchRec's",
    "torchrec_perf": "its arithmetic is TorchRec's",
    "torchrec_columns": "its arithmetic is TorchRec's",
}
#: Episodes of policies that play several and keep the best, which is as many times the same arithmetic.
EPISODES = 3
#: Suites without a sample.
LEFT_OUT_SUITES = {"production-v1": "solvers do the same as on nodes16-v1, but for minutes"}


@dataclass(frozen=True)
class Arithmetic:
    """How sums and functions are rounded."""

    blas: str  #: kernels of OpenBLAS, in NumPy and below numba
    flags: frozenset[str] = field(default_factory=frozenset)  #: of the processor, by Linux, that these kernels need
    torch: str = "default"  #: kernels of torch
    baseline: bool = False  #: whether NumPy, numba and the C library do without what not every processor has
    threads: int = 1  #: of each library

    def environment(self) -> dict[str, str]:
        """Return variables of a process that computes so."""
        count = str(self.threads)
        variables = {"ATEN_CPU_CAPABILITY": self.torch, "OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        variables["OPENBLAS_CORETYPE"] = self.blas
        if self.baseline:
            variables |= {
                "NPY_DISABLE_CPU_FEATURES": " ".join(numpy_features()),
                "NUMBA_CPU_NAME": "generic",
                "MKL_CBWR": "COMPATIBLE",
                "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4",
            }
        return variables


#: Every kind of kernel is in one of them; --only and the variables that it prints tell which kind makes a difference.
ARITHMETICS = {
    "skylakex": Arithmetic("SkylakeX", frozenset({"avx512f", "avx512dq", "avx512bw"}), torch="avx512"),
    "haswell": Arithmetic("Haswell", frozenset({"avx2", "fma"}), torch="avx2", threads=2),
    "nehalem": Arithmetic("Nehalem", baseline=True),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="solve every plan under every kind of kernels")
    parser.add_argument("--only", choices=ARITHMETICS, action="append", help="repeat for several (default: all)")
    parser.add_argument("--write", action="store_true", help="write the plans of this processor's own kernels")
    parser.add_argument("--solve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="runs under every arithmetic instead")
    options = parser.parse_args(arguments)
    if options.solve:
        print(json.dumps(plans_of_sample(options.share)))
        return 0
    if options.write:
        plans = _solved({})
        del plans["blas"]
        EXPECTED.write_text(json.dumps(plans, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    kept = json.loads(EXPECTED.read_text(encoding="utf-8"))
    verdicts = []
    names = [name for name in options.only or ARITHMETICS if not ARITHMETICS[name].flags - processor_flags()]
    # Each solves its share of the sample in a process of its own, on one core.
    pool = ThreadPoolExecutor(os.cpu_count())
    solved = {
        name: pool.submit(_solved, ARITHMETICS[name].environment(), (0, 1) if options.all else (i, len(names)))
        for i, name in enumerate([] if options.command else names)
    }
    for name in options.only or ARITHMETICS:
        arithmetic = ARITHMETICS[name]
        missing = arithmetic.flags - processor_flags()
        if missing:
            print(f"{name}: left out, this processor has no {', '.join(sorted(missing))}")
        elif options.command and arithmetic.blas == blas_kernels():
            print(f"{name}: left out, these are the kernels that OpenBLAS has chosen anyway")
            verdicts.append(True)
        elif options.command:
            done = subprocess.run(options.command, env=os.environ | arithmetic.environment(), check=False)
            print(f"{name}: {' '.join(options.command)} ended with {done.returncode}", flush=True)
            verdicts.append(done.returncode == 0)
        else:
            found = solved[name].result()
            kernels = found.pop("blas")
            if kernels != arithmetic.blas:
                print(f"{name}: left out, OpenBLAS has {kernels} kernels here, not {arithmetic.blas}")
                continue
            others = [what for what, plan in found.items() if plan != kept.get(what)]
            print(f"{name}: {len(found) - len(others)} of {len(found)} plans are the same", flush=True)
            for what in others:
                keep = "but none is kept: 'python tools/check_arithmetic.py --write' keeps it"
                print(f"  {what}: {found[what]}, {f'expected {kept[what]}' if what in kept else keep}")
            verdicts.append(not others)
    return 0 if verdicts and all(verdicts) else 1


def _solved(environment: dict[str, str], share: tuple[int, int] = (0, 1)) -> dict[str, str]:
    """Return the plans of a share of the sample, made by a process with these variables."""
    command = [sys.executable, __file__, "--solve", "--share", *map(str, share)]
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def plans_of_sample(share: tuple[int, int] = (0, 1)) -> dict[str, str]:
    """Return hashes of plans, or why there is none: of (i, n), those of the sample whose names hash to i of n."""
    import shardgym
    from baselines.ppo.solver import PpoAny, PpoColumns
    from shardgym.errors import ShardGymError
    from shardgym.evaluation.solver import solver_names
    from shardgym.records import canonical_json, sha256
    from shardgym.tasks.suites.suite import suite_names

    for policy in (PpoColumns, PpoAny):
        policy.episodes = EPISODES
    solvers = [name for name in solver_names() if name not in LEFT_OUT]
    plans = {"blas": blas_kernels()}
    for suite_name in [name for name in suite_names() if name not in LEFT_OUT_SUITES]:
        suite = shardgym.load_suite(suite_name)
        choice = suite.track("simulator" if suite.oracle == "simulator" else None).oracle
        cost = shardgym.make_cost(choice.cost, **choice.settings)
        # By a hash, because neighbours in a suite are alike; of ten the one with the fewest tables, to save time.
        drawn = sorted(range(len(suite)), key=lambda index: sha256(f"{suite_name}/{index}"))[:10]
        index = min(drawn, key=lambda index: suite[index].num_tables)
        for name in solvers:
            what = f"{suite_name}/{index} {name}"
            if int(sha256(what)[:8], 16) % share[1] != share[0]:
                continue
            try:
                plan = shardgym.make_solver(name).solve(suite[index], cost, seed=0)
                made = sha256(canonical_json([shard.to_dict() for shard in plan.shards]))[:12]
            except ShardGymError as error:
                made = type(error).__name__
            plans[what] = made
    return plans


def numpy_features() -> list[str]:
    """Return the processor features that NumPy looks for at run time, and finds."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return [name for name in __cpu_dispatch__ if __cpu_features__[name]]


def processor_flags() -> frozenset[str]:
    """Return what the processor has, as Linux names it; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def blas_kernels() -> str:
    """Return the kernels that NumPy's OpenBLAS has chosen."""
    import numpy  # noqa: F401 - so that its BLAS is loaded
    from threadpoolctl import threadpool_info

    return next((pool["architecture"] for pool in threadpool_info() if pool["internal_api"] == "openblas"), "none")


if __name__ == "__main__":
    sys.exit(main())
