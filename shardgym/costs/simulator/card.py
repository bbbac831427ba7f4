"""ModelCard: what trained weights are, on what they were trained, and how wrong they are."""

from __future__ import annotations

from typing import Any, Literal

from pydantic.dataclasses import dataclass

from shardgym.records import CONFIG, Digest, Name, Record


@dataclass(frozen=True, config=CONFIG)
class ModelCard(Record):
    """Written next to the weights of one role.

    Attributes:
        role: oracle or judge.
        hardware: tag of the machine that was measured.
        weights_sha256: of the file of weights.
        created: UTC.
        seed: of training.
        settings: of training.
        versions: of Python and the packages.
        data_sha256: of each file of samples.
        collection: settings of the collection, by file.
        samples: measurements by kind. A content that was measured again counts again; the data says which are the same.
        errors: by part: error of the predictions on test rows (tables that no role learned from) as fractions,
            that of one measurement against an independent repeat, and Kendall's tau of both.
        error_by_shards: of total compute, by number of shards on the device.
        error_by_dim: of total compute, by the widest shard on the device.
        curves: training and validation loss of each network by epoch.
        comparison: what `--report` adds: the published architecture and the learning curves.
    """

    role: Literal["oracle", "judge"]
    hardware: Name
    weights_sha256: Digest
    created: str
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    data_sha256: dict[str, str]
    collection: dict[str, Any]
    samples: dict[str, int]
    errors: dict[str, Any]
    error_by_shards: list[dict[str, Any]]
    error_by_dim: list[dict[str, Any]]
    curves: dict[str, Any]
    comparison: dict[str, Any] | None = None
    schema: Literal["shardgym.model_card/1"] = "shardgym.model_card/1"
