"""Fills in a system description for the current machine: lscpu, /proc, /sys, nvidia-smi, installed packages."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from common import machine_tools
from systems.schema import FIELDS, NAMES

_STACK = ("tf-keras", "numpy", "horovod", "mlperf-logging")  # reported in `other_software_stack` if installed


def detect(root: Path = Path("/")) -> tuple[dict[str, str], list[str]]:
    """Describes the machine: (the 33 fields, names of the empty fields that a person must fill in).

    Reads lscpu, /proc and /sys under `root`, and nvidia-smi if installed. A field without a source stays "": nothing
    is guessed. Never raises for an absent or malformed source.
    """
    fields = {
        "system_name": platform.node().split(".")[0], "number_of_nodes": "1",
        **parse_lscpu(machine_tools.output("lscpu")), **_memory(machine_tools.text(root / "proc/meminfo")),
        **_storage(root / "sys/block"), **_network(root / "sys/class"),
        **parse_gpus(machine_tools.nvidia_smi(*_GPU_FIELDS)), **_software(machine_tools.text(root / "etc/os-release")),
    }  # fmt: skip
    description = {name: fields.get(name, "") for name in NAMES}
    return description, missing(description)


def missing(description: dict[str, str]) -> list[str]:
    """Returns the names of the empty fields that a person must fill in."""
    empty = [field.name for field in FIELDS if not description[field.name]]
    return [name for name in empty if not _means_nothing(name, description)]


def _means_nothing(name: str, description: dict[str, str]) -> bool:
    """Whether the field may stay empty here, e.g. an accelerator field on a machine without accelerators."""
    if description["accelerators_per_node"] == "0" and name.startswith("accelerator_"):
        return True
    if description["host_processors_per_node"] == "1" and name == "host_processor_interconnect":
        return True
    return name.endswith("_notes") or name == "host_networking_topology"


def parse_lscpu(text: str) -> dict[str, str]:
    """The host_processor_* fields from `lscpu` output (C locale); cores and threads per CPU."""
    values = dict(re.findall(r"^\s*([^:\n]+?):\s+(.+?)\s*$", text, re.M))
    sockets = _integer(values.get("Socket(s)")) or 1
    cores = _integer(values.get("Core(s) per socket"))
    threads = _integer(values.get("Thread(s) per core"))
    fields = {"host_processors_per_node": str(sockets)}
    if model := values.get("Model name"):
        fields["host_processor_model_name"] = model
        if clock := re.search(r"@\s*([\d.]+)\s*GHz", model):  # Intel names carry the nominal clock
            fields["host_processor_frequency"] = f"{clock[1]} GHz"
    if cores:
        fields["host_processor_core_count"] = str(cores)
        if threads:
            fields["host_processor_vcpu_count"] = str(cores * threads)
    caches = [
        f"{level} {size}" for level in ("L1d", "L1i", "L2", "L3") if (size := values.get(f"{level} cache"))
    ]
    if caches:
        fields["host_processor_caches"] = ", ".join(caches)
    return fields


_GPU_FIELDS = (
    *("name", "memory.total", "clocks.max.sm", "driver_version"),
    *("pcie.link.gen.max", "pcie.link.width.max"),
)


def parse_gpus(rows: list[list[str]]) -> dict[str, str]:
    """The accelerator_* fields from nvidia-smi's rows: one per GPU, in the order of _GPU_FIELDS."""
    if not rows:
        return {"accelerators_per_node": "0"}
    name, mebibytes, megahertz, driver, pcie, width = rows[0]
    fields = {"accelerators_per_node": str(len(rows)), "accelerator_model_name": name}
    if len({row[0] for row in rows}) > 1:
        fields["accelerator_model_name"] = ", ".join(sorted({row[0] for row in rows}))
    if _integer(mebibytes):
        fields["accelerator_memory_capacity"] = f"{int(mebibytes) / 1024:.0f} GiB"
    if _integer(megahertz):
        fields["accelerator_frequency"] = f"{megahertz} MHz (maximum)"
    if _integer(pcie) and _integer(width):
        fields["accelerator_host_interconnect"] = f"PCIe {pcie}.0 x{width}"
    if re.fullmatch(r"[\d.]+", driver):
        fields["sw_notes"] = f"NVIDIA driver {driver}"
    return fields


def _memory(meminfo: str) -> dict[str, str]:
    total = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.M)
    return {"host_memory_capacity": f"{int(total[1]) / 2**20:.1f} GiB"} if total else {}


def _storage(blocks: Path) -> dict[str, str]:
    """Disks with a size, by kind; loop, ram and optical devices do not count as storage."""
    kinds: dict[str, int] = {}
    for disk in _entries(blocks):
        sectors = _integer(machine_tools.text(disk / "size"))  # always in units of 512 bytes
        if not sectors or re.match(r"loop|ram|zram|sr|dm-|md|fd", disk.name):
            continue
        spins = machine_tools.text(disk / "queue/rotational").strip() == "1"
        virtual = disk.name.startswith(("vd", "xvd"))  # a virtual disk hides the kind of the hardware
        kind = (
            "NVMe SSD"
            if disk.name.startswith("nvme")
            else "virtual disk"
            if virtual
            else "HDD"
            if spins
            else "SSD"
        )
        kinds[kind] = kinds.get(kind, 0) + sectors * 512
    if not kinds:
        return {}
    return {
        "host_storage_type": ", ".join(kinds),
        "host_storage_capacity": ", ".join(f"{size / 1e9:.0f} GB" for size in kinds.values()),
    }


def _network(classes: Path) -> dict[str, str]:
    """Adapters that are up, with the speed that the driver reports (Ethernet: in Mbit/s)."""
    links: dict[str, int] = {}
    for adapter in _entries(classes / "net"):
        speed = _integer(machine_tools.text(adapter / "speed"))
        if speed and speed > 0 and (adapter / "device").exists():
            label = f"{speed / 1000:g} Gbit/s Ethernet"
            links[label] = links.get(label, 0) + 1
    for adapter in _entries(classes / "infiniband"):
        for port in _entries(adapter / "ports"):
            if rate := re.match(r"(\d+) Gb/sec", machine_tools.text(port / "rate")):
                label = f"{rate[1]} Gbit/s InfiniBand"
                links[label] = links.get(label, 0) + 1
    return {"host_networking": ", ".join(f"{n} x {label}" for label, n in links.items())} if links else {}


def _software(os_release: str) -> dict[str, str]:
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', os_release, re.M)
    stack = [f"Python {platform.python_version()}"]
    stack += [f"{package} {version}" for package, version in machine_tools.versions(*_STACK).items()]
    tensorflow = machine_tools.versions("tensorflow").get("tensorflow")
    return {
        "operating_system": name[1] if name else f"{platform.system()} {platform.release()}".strip(),
        "framework": f"TensorFlow {tensorflow}" if tensorflow else "",
        "other_software_stack": ", ".join(stack),
    }


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\s*\d+\s*", text) else None
