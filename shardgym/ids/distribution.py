"""Where the ids of a table come from: records only, sampling is in `shardgym.ids.sampling`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.records import CONFIG, Digest, Name, Number, Record, Whole

#: How bag sizes vary around the pooling factor: `fixed` spreads ids evenly over samples, `poisson` draws every bag.
Lengths = Literal["fixed", "poisson"]


@dataclass(frozen=True, config=CONFIG)
class UniformIds(Record):
    """Every row is equally likely."""

    kind: Literal["uniform"] = "uniform"
    lengths: Lengths = "fixed"


@dataclass(frozen=True, config=CONFIG)
class ZipfIds(Record):
    """Row of popularity rank x = 0, 1, ... is drawn with probability proportional to (x + 1 + q) ** -s.

    The family of FBGEMM's benchmark configuration (`TBEDataConfig`: `zipf_q`, `zipf_s`). Ranks are scattered over
    the rows, so that a range of rows holds a fair share of popular ones.

    Attributes:
        s: exponent; larger means more skew.
        q: shift; larger flattens the head. At least -0.5.
    """

    s: Annotated[Number, Field(ge=0, le=10)]
    q: Annotated[Number, Field(ge=-0.5, le=1e12)] = 0.0
    kind: Literal["zipf"] = "zipf"
    lengths: Lengths = "fixed"


@dataclass(frozen=True, config=CONFIG)
class RecordedIds(Record):
    """Ids recorded in a dlrm_datasets file, found by name in the folders of `SHARDGYM_DATA`.

    Attributes:
        file: name of the file, without folders.
        table_index: which of the file's tables.
        batch_size: samples recorded.
        sha256: over the table's lengths and ids as little-endian 64-bit integers; compared when the ids are loaded.
    """

    file: Annotated[Name, Field(pattern=r"^[^/\\]+$")]
    table_index: Annotated[Whole, Field(ge=0)]
    batch_size: Annotated[Whole, Field(ge=1)]
    sha256: Digest
    kind: Literal["recorded"] = "recorded"


IdDistribution = Annotated[UniformIds | ZipfIds | RecordedIds, Field(discriminator="kind")]
