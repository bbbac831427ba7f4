"""Imported by the fork server: what ranks need, as far as it can be imported. Ranks themselves say what cannot."""

import contextlib
import importlib

for name in ("shardgym.costs.fbgemm.step_rank", "fbgemm_gpu.split_table_batched_embeddings_ops_training"):
    with contextlib.suppress(Exception):
        importlib.import_module(name)
