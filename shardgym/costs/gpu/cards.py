"""GPU cards by name: what their data sheets say, and what of it was measured and published."""

from dataclasses import dataclass

from shardgym.errors import UnknownNameError

_GB = 1e9
_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True)
class Card:
    """One GPU. Bandwidths are bytes per second, of one direction where links have two."""

    #: Of streaming reads: measured where somebody published it, else `STREAM_SHARE` of the peak.
    memory_bandwidth: float
    l2_bytes: int
    sms: int
    clock_hz: float
    nvlink: float  #: to other GPUs of its domain; PCIe where the card has no NVLink
    nic: float  #: its network card, to other domains
    domain_size: int  #: GPUs that share the fast links
    host: float  #: PCIe or other link to the memory of the host
    memory_bytes: int  #: what it holds; the gigabytes of data sheets are GiB, less what error correction takes
    source: str

    @property
    def sm_clocks(self) -> float:
        """Clocks of all multiprocessors per second."""
        return self.sms * self.clock_hz


#: Streaming reads over the peak of the data sheet, the median of what is published: V100 866/900, A100-40 1490/1555,
#: A100-80 1769 and 1850/2039, H100 PCIe 1942/2039, H200 3888/4800 GB/s. For cards without a published stream.
STREAM_SHARE = 0.93

# Sources of the figures that several cards share.
_STREAMS = "stream: te42kyfo/gpu-benches @1c36d50"
_CLOCK = "clock: FP32 rate / (multiprocessors x lanes x 2)"

# Of B200 and its kin, CUDA reports 148 multiprocessors and 126 MiB.
_BLACKWELL = f"L2 as CUDA reports it of a B200; {_CLOCK} of a B200's multiprocessors"

#: Names without a size or form are those of topologies: `a100` has 80 GB, `h100` is SXM.
CARDS: dict[str, Card] = {
    "rtx-2080-ti": Card(
        583.8 * _GB, 5632 * 1024, 68, 1.545e9, 10 * _GB, 1.25 * _GB, 8, 15.75 * _GB, 11 * _GIB,
        "NVIDIA Turing whitepaper (TU102); memory: published microbenchmark, 543.7 GiB/s; links: PCIe 3.0 x16 of a "
        "host that they share, 10 GbE",
    ),
    "a10": Card(
        STREAM_SHARE * 600 * _GB, 6 * _MIB, 72, 1.695e9, 31.5 * _GB, 12.5 * _GB, 8, 31.5 * _GB, 24 * _GIB,
        f"NVIDIA A10 data sheet; {_CLOCK}; links: PCIe 4.0 x16 to other cards and to the host, 100 Gbit/s",
    ),
    "v100": Card(
        866 * _GB, 6 * _MIB, 80, 1.53e9, 150 * _GB, 12.5 * _GB, 8, 15.75 * _GB, 32 * _GIB,
        f"NVIDIA V100 data sheet (SXM2); {_STREAMS} v100.txt; {_CLOCK}; links: NVLink 2, 100 Gbit/s, PCIe 3.0",
    ),
    "a100-40": Card(
        1490 * _GB, 40 * _MIB, 108, 1.41e9, 300 * _GB, 25 * _GB, 8, 31.5 * _GB, 40 * _GIB,
        f"NVIDIA A100 data sheet (SXM, 40 GB); {_STREAMS} a100_40.txt; {_CLOCK}; links: NVLink 3, HDR, PCIe 4.0",
    ),
    "a100": Card(
        1850 * _GB, 40 * _MIB, 108, 1.41e9, 300 * _GB, 25 * _GB, 8, 31.5 * _GB, 80 * _GIB,
        "NVIDIA A100 data sheet (SXM, 80 GB); stream: te42kyfo/gpu-benches gpu-l2-cache, sets of 100 MB and more; "
        f"{_CLOCK}; links: NVLink 3, HDR, PCIe 4.0",
    ),
    "h100": Card(
        STREAM_SHARE * 3350 * _GB, 50 * _MIB, 132, 1.98e9, 450 * _GB, 50 * _GB, 8, 63 * _GB, 80 * _GIB,
        f"NVIDIA H100 data sheet (SXM); {_CLOCK}; links: NVLink 4, NDR, PCIe 5.0",
    ),
    "h100-pcie": Card(
        1942 * _GB, 50 * _MIB, 114, 1.755e9, 300 * _GB, 50 * _GB, 2, 63 * _GB, 80 * _GIB,
        f"NVIDIA H100 data sheet (PCIe); {_STREAMS} h100_pcie.txt; {_CLOCK}; links: NVLink bridge of two cards, NDR, "
        "PCIe 5.0",
    ),
    "h200": Card(
        3888 * _GB, 50 * _MIB, 132, 1.98e9, 450 * _GB, 50 * _GB, 8, 63 * _GB, 141 * _GIB,
        "NVIDIA H200 data sheet (SXM); stream: te42kyfo/gpu-benches gpu-l2-cache, sets of 120 MB and more; "
        f"{_CLOCK}; links: NVLink 4, NDR, PCIe 5.0",
    ),
    "b200": Card(
        STREAM_SHARE * 8000 * _GB, 126 * _MIB, 148, 1.965e9, 900 * _GB, 50 * _GB, 8, 63 * _GB, 180 * _GIB,
        f"NVIDIA B200 data sheet (HGX); L2: 126 MiB as CUDA reports it; {_CLOCK}; links: NVLink 5, NDR, PCIe 5.0",
    ),
    "b300": Card(
        STREAM_SHARE * 8000 * _GB, 126 * _MIB, 148, 1.98e9, 900 * _GB, 100 * _GB, 8, 63 * _GB, 270 * _GIB,
        f"HGX B300: 270 GB and FP32 75 TFLOPS, verda.com/blog/gb300-nvl72-architecture; {_BLACKWELL}; links: "
        "NVLink 5, ConnectX-8 of 800 Gbit/s, PCIe "
        "5.0 of its hosts",
    ),
    "gb200": Card(
        STREAM_SHARE * 8000 * _GB, 126 * _MIB, 148, 1.98e9, 900 * _GB, 50 * _GB, 72, 225 * _GB, 186 * _GIB,
        "GB200 NVL72: 13.4 TB of 72 GPUs, aiwiki.ai/wiki/nvidia_gb200_nvl72; bandwidth as the GB300; FP32 75 TFLOPS, "
        f"verda.com as B300; {_BLACKWELL}; links: "
        "NVLink 5, NDR, half of the NVLink-C2C of a CPU, 450 GB/s per direction, that two GPUs share",
    ),
    "gb300": Card(
        STREAM_SHARE * 8000 * _GB, 126 * _MIB, 148, 2.11e9, 900 * _GB, 100 * _GB, 72, 225 * _GB, 279 * _GIB,
        f"GB300 NVL72: 279 GB, 576 TB/s of 72 GPUs, FP32 80 TFLOPS, verda.com as B300; {_BLACKWELL}; links: "
        "NVLink 5, ConnectX-8 of 800 Gbit/s, host as of the GB200",
    ),
    "l40s": Card(
        844 * _GB, 96 * _MIB, 142, 2.52e9, 31.5 * _GB, 25 * _GB, 8, 31.5 * _GB, 48 * _GIB,
        "NVIDIA L40S data sheet; stream and L2: te42kyfo/gpu-benches l40.txt, of an L40, whose memory is the same; "
        f"{_CLOCK}; links: PCIe 4.0 x16 to other cards and to the host, HDR",
    ),
}  # fmt: skip


def planning_cost(device: str) -> str:
    """Return the name of the cost that plans for a device if no other is asked for."""
    return "gpu" if device in CARDS else "roofline"


def card(name: str) -> Card:
    """Return a card by name; others are an `UnknownNameError` with the closest names."""
    if name not in CARDS:
        raise UnknownNameError("GPU", name, CARDS)
    return CARDS[name]
