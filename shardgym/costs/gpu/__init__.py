"""`gpu`: a cost model of fused kernels and of exchanges on GPUs, held against published measurements."""
