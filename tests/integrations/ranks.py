"""Runs a function on every rank of a gloo group, in processes forked from this one."""

import multiprocessing
import pickle
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist

#: Seconds until ranks that wait for each other give up, and until the test does.
GROUP_TIMEOUT_S = 120
TIMEOUT_S = 300


def run_ranks(size, function, group_timeout_s=GROUP_TIMEOUT_S):
    """Return what `function(rank)` returns on each rank; exceptions are returned, too, not raised."""
    # Importing TorchRec takes seconds; forked processes have it already.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        pipes = []
        for rank in range(size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_run, args=(rank, size, Path(folder) / "store", function, sender, group_timeout_s)
            )
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        results = [AssertionError("the rank did not answer")] * size
        end = time.monotonic() + TIMEOUT_S
        waiting = dict(zip(pipes, range(size), strict=True))
        while waiting and time.monotonic() < end:
            for pipe in wait(list(waiting), timeout=1.0):
                rank = waiting.pop(pipe)
                try:
                    results[rank] = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    results[rank] = AssertionError("the rank died")
        for process in processes:
            if waiting:
                process.kill()
            process.join()
    return results


def _run(rank, size, store, function, sender, group_timeout_s):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=group_timeout_s)
    )
    try:
        answer = function(rank)
    except Exception as error:
        answer = error
    try:
        sender.send_bytes(pickle.dumps(answer))
    except Exception as error:  # an exception that cannot be pickled
        sender.send_bytes(pickle.dumps(AssertionError(f"{type(answer).__name__}: {answer} ({error})")))
    dist.destroy_process_group()
