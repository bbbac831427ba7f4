"""With this folder on PYTHONPATH, Python measures "on CUDA" by the CPU's kernels, the wall clock and its own memory.

Python imports this module when it starts. Modules of ShardGym get their stand-ins once they have been imported.
"""

import importlib.util
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in STAND_INS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            STAND_INS[name](module)

        spec.loader.exec_module = exec_module
        return spec


def time_by_the_wall(module):
    from cuda_toys import Gpu, Torch

    module.torch = Torch(Gpu("NVIDIA H100 Stand-in", clock_ms=lambda: 1e3 * time.perf_counter()))


def join_by_gloo(module):
    """And count the memory of the process."""
    import resource

    import torch

    time_by_the_wall(module)
    join = module.dist.init_process_group
    module.dist.init_process_group = lambda _, **given: join("gloo", **given)
    torch.cuda.memory_allocated = lambda: 0
    torch.cuda.max_memory_allocated = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.cuda.empty_cache = torch.cuda.reset_peak_memory_stats = lambda: None


STAND_INS = {"shardgym.costs.fbgemm.cuda": time_by_the_wall, "shardgym.costs.fbgemm.step_rank": join_by_gloo}
sys.meta_path.insert(0, Finder())
