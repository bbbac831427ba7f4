"""Published GPU measurements as rows: kernels, collectives and memory bandwidths, each with its source.

`rows.csv` holds one fact a row: `id,gpu,op,optimizer,weights_precision,B,E,T,D,L,id_distribution,time_us,
bw_gbps,source`, with B bags per table, E rows per table, T tables, D columns and L ids per bag. Here they get a kind,
the card they are held against, and numbers. What a source leaves open is decided here, for all to see.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DATA = Path(__file__).with_name("rows.csv")

#: What a row measured: a kernel of FBGEMM in the GPU's memory, with rows in the host's memory, with rows in the host's
#: memory behind a cache; kernels of others, of FP8, that wait for the host, or without sizes; memory bandwidth; an
#: all-to-all or copy between GPUs; a reduce-scatter, all-gather or all-reduce.
Kind = Literal["fused", "host memory", "cached", "other kernel", "memory", "exchange", "collective"]

#: Kinds that the model predicts as kernels.
KERNELS = ("fused", "host memory", "cached")

#: Cards of rows by what they say of the GPU. Meta's unnamed development machines of 2024 and 2025 are taken as A100
#: with 80 GB: lookup rates, widths that fit the L2, widths that do not, and the host's link all agree with it and not
#: with an H100. That of January 2021 is taken as V100. Cards that differ from all presets have none.
_CARDS = (
    (r"2021-01", "v100"),
    (r"devgpu 2024-09|devgpu\) 2025-08", "a100"),
    (r"^RTX 2080 Ti", "rtx-2080-ti"),
    (r"^V100", "v100"),
    (r"^A100.?40", "a100-40"),
    (r"^A100", "a100"),
    (r"^H100 PCIe", "h100-pcie"),
    (r"^H100 \(Meta", ""),
    (r"^H100", "h100"),
    (r"^H200", "h200"),
    (r"^G?B200", "b200"),
)
#: Rows of one machine and study belong to one source, whatever file or commit they stand in.
_SOURCES = (
    r"NVIDIA/recsys-examples", r"pytorch/FBGEMM commit \w+", r"pytorch/FBGEMM fbgemm_gpu/bench/tbe/README.md",
    r"meta-pytorch/torchrec (?:commit \w+|PR \d+)", r"pytorch/pytorch PR \d+", r"[\w-]+/[\w.-]+ (?:PR|issue) \d+",
    r"NVIDIA-Merlin/\w+", r"Oracle OCI \w+(?:/\w+)? guide", r"mirrored nccl issue", r"^[\w-]+/[\w.-]+",
    r"benchmark report of an RTX 2080 Ti", r"Vultr HGX B200", r"GCP GB300",
)  # fmt: skip
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Row:
    """One published measurement."""

    id: str
    kind: Kind
    source: str  #: who published it; rows of one source are left out together
    gpu: str  #: as published
    card: str  #: the preset that it is held against; "" if none fits
    op: str  #: as published
    optimizer: str  #: as published
    element_bytes: int  #: of a weight
    bags: float  #: B; like those below 0 where unknown
    rows: float  #: E
    tables: float  #: T
    columns: float  #: D
    pooling: float  #: L
    ids: str  #: distribution of ids, as published
    time_us: float  #: 0 where only a bandwidth was published
    gbps: float  #: 10**9 bytes per second; 0 where only a time was published
    note: str  #: what else the source says

    @property
    def unique(self) -> float:
        """Distinct rows over all tables where the source has them, else 0."""
        found = re.search(r"\((\d+) unique\)", self.ids)
        return float(found[1]) if found else 0.0

    @property
    def backward(self) -> bool:
        """Whether this is the backward pass alone."""
        return self.op.startswith("backward")

    @property
    def ranks(self) -> int:
        """GPUs of an exchange."""
        return int(re.search(r"n=(\d+)", self.op)[1])  # type: ignore[index]

    @property
    def message_bytes(self) -> float:
        """Bytes that each GPU of an exchange sends in all, or of all GPUs of a collective; 0 where unknown."""
        found = re.search(r"size=(\d+) ?([KMG]?i?B)", self.op)
        return float(found[1]) * _BYTES[found[2]] if found else 0.0

    @property
    def cache_share(self) -> float:
        """Share of the rows of a table that a cache in front of the host's memory has room for; 0 where unknown."""
        found = re.search(r"cache for ([\d.]+) of the rows", self.note)
        return float(found[1]) if found else 0.0

    @property
    def batches(self) -> int:
        """Batches of a run that begins with an empty cache, over which a time is the mean; 0 where unknown."""
        found = re.search(r"(\d+) batches from an empty cache", self.note)
        return int(found[1]) if found else 0

    @property
    def faulty(self) -> bool:
        """Whether the source says that the fabric of a collective is not as it should be."""
        return "known to be bad" in self.note

    @property
    def domain(self) -> int:
        """GPUs of an exchange that share fast links."""
        parts = re.search(r"(\d+) racks", self.note)
        if not parts and not re.search(r"same NVL rack|one rack", self.note):
            parts = re.search(r"(\d+) nodes", self.note)
        return self.ranks // (int(parts[1]) if parts else 1)


class NotPredicted(Exception):
    """The model says nothing of a row; the text says why."""


def read_rows(path: Path = DATA) -> list[Row]:
    """Return the rows of `rows.csv`, or of a file like it."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_row(fields) for fields in csv.DictReader(file)]


def _row(fields: dict[str, str]) -> Row:
    reference, _, note = fields["source"].partition("|")
    sizes = [_number(fields[name]) for name in ("B", "E", "T", "D", "L")]
    precision = fields["weights_precision"]
    element_bytes = {"fp8": 1, "fp16": 2, "bf16": 2, "fp64": 8}.get(precision, 4)
    op = fields["op"]
    named = (found[0] for pattern in _SOURCES if (found := re.search(pattern, reference)))
    return Row(
        fields["id"], _kind(op, sizes, reference, precision), next(named, reference.strip(" ()")),
        fields["gpu"], card_of(fields["gpu"]), op, fields["optimizer"], element_bytes, *sizes,
        fields["id_distribution"], _number(fields["time_us"]), _number(fields["bw_gbps"]),
        f"{reference.strip()} {note.strip()}",
    )  # fmt: skip


def _number(text: str) -> float:
    """Read a number; the mean of two with a slash between, as the tables of one operator may differ."""
    scale = 2**20 if text.endswith("M") else 1
    found = [float(number) for number in _NUMBER.findall(text)]
    return scale * sum(found) / len(found) if found else 0.0


def gpu_name(tag: str) -> str:
    """Return what a GPU with a hardware tag of ours is called in rows, such as "H100 80GB HBM3"."""
    return tag.removeprefix("cuda-").removeprefix("nvidia-").replace("-", " ").upper()


def card_of(gpu: str) -> str:
    """Return the preset that rows of a GPU are held against; "" if none fits."""
    return next((name for pattern, name in _CARDS if re.search(pattern, gpu)), "")


def _kind(op: str, sizes: Sequence[float], reference: str, precision: str) -> Kind:
    # Three all-reduces in one node count as exchanges: boards rest on start-up times of links that are fitted to them.
    if re.match(r"reduce_scatter|all_gather|all_reduce", op) and "stas00" not in reference:
        return "collective"
    if re.search(r" n=\d+|p2p", op):
        return "exchange"
    if re.match(r"stream|read bandwidth|L2|DRAM|fit used|gather_|scatter_|permute|launch interval|pooled regroup", op):
        return "memory"
    fbgemm = re.match(r"(eval )?forward|backward|fwd\+bwd", op) and not re.search(r"aten|Triton|weighted", op)
    waits_for_host = "CPU-launch" in op or re.search(r"133f7c019", reference)
    if precision == "fp8" or waits_for_host or (not fbgemm and not op.startswith("prefetch")):
        return "other kernel"
    if re.search(r"UVM", op):
        return "host memory"
    if re.search(r"CACHING|LXU|prefetch", op) and "after prefetch" not in op:
        return "cached"
    return "fused" if all(sizes) and precision != "?" else "other kernel"
