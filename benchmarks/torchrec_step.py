"""TorchRec's training steps under plans of a task: `DistributedModelParallel` over gloo, a process per device.

Tables are trained alone, by the steps of `shardgym compare` (`shardgym.torchrec.real_steps`). Each rank is in a network
namespace and has a full-duplex link of known rate. Plans take turns in random order in every round. Not a script.
"""

import json
import logging
import os
import random
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from shardgym import ShardingPlan, ShardingTask
from shardgym.arrays import Floats
from shardgym.costs.fbgemm.namespaces import INTERFACE, ShapedLinks, join_network
from shardgym.torchrec import to_torchrec
from shardgym.torchrec.ranks import World
from shardgym.torchrec.real_steps import job_of_collections, run_turn

#: Ranks of a host.
HOST = 2
#: Seconds that ranks may take to link up.
_LINKS_S = 60.0
#: File of what ranks measured.
_TIMES = "times.json"


def real_ms(task: ShardingTask, plans: list[ShardingPlan], rounds: int, seed: int) -> Floats:
    """Return ms of a step of each plan by new processes: median over rounds, and over steps of the slowest rank."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # Forked processes have imported TorchRec already, which takes seconds.
        start_processes(_train, (task, plans, rounds, seed, folder), nprocs=task.num_devices, start_method="fork")
        return np.median(json.loads((folder / _TIMES).read_text()), axis=1)


def _train(rank: int, task: ShardingTask, plans: list[ShardingPlan], rounds: int, seed: int, folder: Path) -> None:
    """Run all plans on one rank; the first one writes ms by plan and round."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    world = World(rank, task.num_devices, min(HOST, task.num_devices), torch.device("cpu"))
    os.environ |= {"GLOO_SOCKET_IFNAME": INTERFACE, "LOCAL_WORLD_SIZE": str(world.local_size)}
    join_network(rank, ShapedLinks.of(task.topology, dilation=1.0), folder, _LINKS_S)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world.size)
    job = job_of_collections(task, world, seed)
    shuffle = random.Random(seed)  # the same on all ranks
    taken: list[list[float]] = [[] for _ in plans]
    for _ in range(rounds):
        for n in shuffle.sample(range(len(plans)), len(plans)):
            turn = run_turn(job, to_torchrec(plans[n], task, device_type="cpu"), world)
            slowest = torch.tensor(turn.step_ms, dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            taken[n].append(float(slowest.median()))
    if rank == 0:
        (folder / _TIMES).write_text(json.dumps(taken))
    dist.destroy_process_group()
