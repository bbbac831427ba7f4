"""Conversion of TorchRec models to tasks, and of plans to and from `DistributedModelParallel`.

Importing this package imports TorchRec, and raises a `MissingDependencyError` if TorchRec is not installed.
"""

from shardgym.errors import MissingDependencyError

try:
    import fbgemm_gpu.split_embedding_configs  # noqa: F401
    import torchrec.distributed.planner  # noqa: F401
except ModuleNotFoundError as error:
    _module = (error.name or "torchrec").partition(".")[0]
    _purpose = "the TorchRec adapter (beside the extra 'cpu', or 'gpu' with CUDA)"
    raise MissingDependencyError(_module, "torchrec", _purpose) from None

from shardgym.torchrec.model_tables import model_from_task
from shardgym.torchrec.plan_file import load, save
from shardgym.torchrec.planner import Planned, PlannerSettings, ShardGymPlanner
from shardgym.torchrec.sharding_plan import (
    ExportedPlan,
    ImportedPlan,
    export_plan,
    from_torchrec,
    import_plan,
    to_torchrec,
)
from shardgym.torchrec.tasks import ImportedTask, Reserve, import_model, task_from_model, topology_from_torchrec

__all__ = [
    "ExportedPlan",
    "ImportedPlan",
    "ImportedTask",
    "Planned",
    "PlannerSettings",
    "Reserve",
    "ShardGymPlanner",
    "export_plan",
    "from_torchrec",
    "import_model",
    "import_plan",
    "load",
    "model_from_task",
    "save",
    "task_from_model",
    "to_torchrec",
    "topology_from_torchrec",
]
