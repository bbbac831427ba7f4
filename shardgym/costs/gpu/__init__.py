"""`gpu`: a cost model of fused kernels and of exchanges on GPUs, held against published measurements."""

from shardgym.costs.gpu.cost import GpuCost

__all__ = ["GpuCost"]
