"""Topology: the devices a plan may use and how they are connected."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from shardgym.errors import InputError, UnknownNameError, check_int, short_repr
from shardgym.records import CONFIG, Name, Number, Record, Whole

GIB = 2**30
MAX_DEVICES = 65536
MAX_MEMORY_BYTES = 2**60


def _check_bandwidth(value: float) -> float:
    if not 1e3 <= value <= 1e18:
        raise ValueError("expected bytes per second, 1e3 to 1e18; 25 GB/s are 25e9")
    return value


Bandwidth = Annotated[Number, AfterValidator(_check_bandwidth)]
LatencyMs = Annotated[Number, Field(ge=0, le=1e6)]

#: What a preset says of links, besides how many devices share the fast ones.
_LINK_FIELDS = ("interconnect", "intra_bandwidth", "inter_bandwidth", "intra_latency_ms", "inter_latency_ms")


@dataclass(frozen=True, config=CONFIG)
class Topology(Record):
    """Devices with their memory, and the links between them.

    Links that are not given are those of the preset of the same `device`; where none has it, they must be given.

    Attributes:
        num_devices: devices, numbered from 0.
        memory_bytes: memory of each device for weights and optimiser state, or for all of a training step if the task
            has `step_memory`; one integer stands for all devices.
        device: the hardware of one device, a key of `shardgym.costs.devices.DEVICES` (roofline constants).
        interconnect: name of the links, for display.
        fast_domain_size: consecutive devices that share the fast links (an NVLink domain); by default as many as in the
            preset of the device, all on CPUs.
        host_size: consecutive devices of one machine, if a fast domain has several machines; None: a fast domain is one
            machine.
        intra_bandwidth: bytes per second that one device can send inside its fast domain.
        inter_bandwidth: bytes per second that one device can send to other domains.
        intra_latency_ms: start-up time of a collective inside a domain.
        inter_latency_ms: start-up time of a collective across domains.
        host_memory_bytes: memory of each host for weights and optimiser state; 0: plans may not use it.
        host_bandwidth: bytes per second and direction between a device and its host, over PCIe or another bus; None:
            what is known of `device`.
    """

    num_devices: Annotated[Whole, Field(ge=1, le=MAX_DEVICES)]
    memory_bytes: tuple[Annotated[Whole, Field(ge=1, le=MAX_MEMORY_BYTES)], ...]
    device: Name = "cpu-core"
    interconnect: Name = "ethernet"
    fast_domain_size: Annotated[Whole, Field(ge=1)] = 1
    intra_bandwidth: Bandwidth = 0.25e9
    inter_bandwidth: Bandwidth = 0.25e9
    intra_latency_ms: LatencyMs = 0.3
    inter_latency_ms: LatencyMs = 0.3
    host_size: Annotated[Whole, Field(ge=1)] | None = None
    host_memory_bytes: Annotated[Whole, Field(ge=0, le=MAX_MEMORY_BYTES, exclude_if=lambda size: size == 0)] = 0
    host_bandwidth: Annotated[Bandwidth | None, Field(exclude_if=lambda bandwidth: bandwidth is None)] = None
    schema: Literal["shardgym.topology/1"] = "shardgym.topology/1"

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        """Let one memory size stand for all devices, make all of them one domain, and give them links, by default."""
        values = data
        if isinstance(data, ArgsKwargs):  # from the constructor: arguments by position get their names
            names = [field.name for field in dataclasses.fields(cls)][: len(data.args)]
            values = dict(zip(names, data.args, strict=False)) | (data.kwargs or {})
            if len(values) < len(data.args) + len(data.kwargs or {}):
                return data  # too many arguments, or one passed twice: pydantic says which
        if not isinstance(values, dict):
            return data
        device = values.get("device", "cpu-core")
        preset = next((links for links in PRESETS.values() if links["device"] == device), {})
        if not preset and "intra_bandwidth" not in values:
            raise ValueError(
                f"no preset has device {short_repr(device)}: give the bandwidths and latencies of its links"
            )
        values = {name: preset[name] for name in _LINK_FIELDS if name in preset} | values
        count = _int_or_none(values.get("num_devices"))
        memory = _int_or_none(values.get("memory_bytes"))
        if count is not None and 0 < count <= MAX_DEVICES:
            values = {"fast_domain_size": min(count, preset.get("fast_domain_size", count)), **values}
            if memory is not None:
                values["memory_bytes"] = (memory,) * count
        return ArgsKwargs((), values) if isinstance(data, ArgsKwargs) else values

    @field_validator("memory_bytes", mode="before")
    @classmethod
    def _is_list(cls, value: Any) -> Any:
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise ValueError("expected a whole number of bytes, or one for each device")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Topology:
        if len(self.memory_bytes) != self.num_devices:
            raise ValueError(f"memory_bytes has {len(self.memory_bytes)} entries for {self.num_devices} devices")
        if self.fast_domain_size > self.num_devices:
            raise ValueError(f"fast_domain_size {self.fast_domain_size} exceeds {self.num_devices} devices")
        if self.fast_domain_size % self.devices_per_host:
            raise ValueError(
                f"host_size {self.host_size} does not divide the fast domain of {self.fast_domain_size} devices: "
                "expected a domain of one or more whole hosts"
            )
        return self

    @property
    def devices_per_host(self) -> int:
        """Devices of one machine."""
        return self.fast_domain_size if self.host_size is None else self.host_size

    @property
    def devices_alone(self) -> Topology:
        """The same devices, where plans may not use the memory of hosts."""
        return dataclasses.replace(self, host_memory_bytes=0)

    @property
    def total_memory_bytes(self) -> int:
        """Memory of all devices together."""
        return sum(self.memory_bytes)

    @property
    def num_hosts(self) -> int:
        """Machines; the last one may have fewer devices than the others."""
        return -(-self.num_devices // self.devices_per_host)

    def host_of(self, device: int) -> int:
        """Return the number of the machine of a device."""
        return device // self.devices_per_host

    def roomy(self, num_devices: int | None = None) -> Topology:
        """Return devices like these on which all tables fit, to price infeasible plans.

        Args:
            num_devices: number of devices, all in one fast domain; the same devices when None.
        """
        if num_devices is None:
            return dataclasses.replace(self, memory_bytes=(MAX_MEMORY_BYTES,) * self.num_devices)
        return dataclasses.replace(
            self,
            num_devices=num_devices,
            memory_bytes=(MAX_MEMORY_BYTES,) * num_devices,
            fast_domain_size=num_devices,
            host_size=None,
        )

    @classmethod
    def preset(cls, name: str, num_devices: int, memory_bytes: int | None = None) -> Topology:
        """Return a named topology for `num_devices` devices.

        Args:
            name: a key of `PRESETS`.
            num_devices: devices in all; those of one host share its fast links.
            memory_bytes: overrides the preset's memory per device.

        Raises:
            UnknownNameError: no such preset; the message offers the closest.
            InputError: no device, or more than `MAX_DEVICES`.
        """
        num_devices = check_int("num_devices", num_devices, 1)
        if name not in PRESETS:
            raise UnknownNameError("topology", name, PRESETS)
        if num_devices > MAX_DEVICES:  # before there is a size for each of them
            raise InputError(f"num_devices: expected at most {MAX_DEVICES}, got {num_devices}")
        values = dict(PRESETS[name])
        memory = values.pop("memory_bytes")
        domain = min(values.pop("fast_domain_size", num_devices), num_devices)
        memory_per_device = (memory if memory_bytes is None else memory_bytes,) * num_devices
        return cls(num_devices=num_devices, memory_bytes=memory_per_device, fast_domain_size=domain, **values)


def _int_or_none(value: Any) -> int | None:
    """Return a value that is one whole number, NumPy's included; None for any other and for booleans."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or getattr(value, "shape", None):
        return None
    return operator.index(value)


def _dgx(device: str, memory_gib: int, interconnect: str, nvlink: float, infiniband: float) -> dict[str, Any]:
    """Servers of eight NVIDIA GPUs; bandwidths in bytes per second."""
    return {
        "memory_bytes": memory_gib * GIB,
        "device": device,
        "interconnect": interconnect,
        "fast_domain_size": 8,
        "intra_bandwidth": nvlink,
        "inter_bandwidth": infiniband,
        "intra_latency_ms": 0.02,
        "inter_latency_ms": 0.05,
    }


#: Bandwidths are per device and direction, from the vendors' data sheets: NVLink 2/3/4/5 (150, 300, 450, 900 GB/s),
#: PCIe 3 x16 shared by a 2080 Ti host (about 10 GB/s usable), PCIe 4 x16 (31.5 GB/s), Ethernet and InfiniBand EDR, HDR
#: and NDR, and ConnectX-8 (1.25, 12.5, 25, 50, 100 GB/s per device). A fifth to two thirds of the memory is left for
#: the rest of a model.
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {"memory_bytes": 128 * 2**20, "device": "cpu-core"},
    "rtx2080ti": _dgx("rtx-2080-ti", 4, "pcie3", 10e9, 1.25e9) | {"intra_latency_ms": 0.05, "inter_latency_ms": 0.1},
    "dgx-v100": _dgx("v100", 24, "nvlink2+ib", 150e9, 12.5e9),
    "dgx-a100": _dgx("a100", 60, "nvlink3+hdr", 300e9, 25e9),
    "dgx-h100": _dgx("h100", 60, "nvlink4+ndr", 450e9, 50e9),
    "dgx-h200": _dgx("h200", 110, "nvlink4+ndr", 450e9, 50e9),
    "dgx-b200": _dgx("b200", 135, "nvlink5+ndr", 900e9, 50e9),
    "dgx-b300": _dgx("b300", 200, "nvlink5+cx8", 900e9, 100e9),
    "gb200-nvl72": _dgx("gb200", 140, "nvlink5+ndr", 900e9, 50e9) | {"fast_domain_size": 72},
    "gb300-nvl72": _dgx("gb300", 210, "nvlink5+cx8", 900e9, 100e9) | {"fast_domain_size": 72},
    "l40s": _dgx("l40s", 36, "pcie4+hdr", 31.5e9, 25e9),
}
