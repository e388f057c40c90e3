"""Tests detection from recorded outputs and a simulated /proc and /sys; nothing is guessed."""

import pytest

import systems
from common import machine_tools
from systems import hardware
from systems.schema import NAMES, validate

XEON = """\
Architecture:        x86_64
CPU(s):              80
Thread(s) per core:  2
Core(s) per socket:  20
Socket(s):           2
Model name:          Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz
L1d cache:           32K
L2 cache:            256K
L3 cache:            51200K
"""
V100 = "Tesla V100-SXM2-16GB, 16384, 1530, 450.36.06, 3, 16\n" * 8


def test_lscpu():
    assert hardware.parse_lscpu(XEON) == {
        "host_processors_per_node": "2",
        "host_processor_model_name": "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz",
        "host_processor_frequency": "2.20 GHz",
        "host_processor_core_count": "20",
        "host_processor_vcpu_count": "40",
        "host_processor_caches": "L1d 32K, L2 256K, L3 51200K",
    }


def test_nvidia_smi():
    fields = hardware.parse_gpus(machine_tools.rows(V100, 6))
    assert fields["accelerators_per_node"] == "8"
    assert fields["accelerator_model_name"] == "Tesla V100-SXM2-16GB"
    assert fields["accelerator_memory_capacity"] == "16 GiB"
    assert fields["accelerator_host_interconnect"] == "PCIe 3.0 x16"
    assert fields["sw_notes"] == "NVIDIA driver 450.36.06"


@pytest.mark.parametrize("text", ["", "No devices were found\n", "\0\0", "a\n" * 100])
def test_odd_or_absent_tools_give_no_accelerators(text):
    assert hardware.parse_gpus(machine_tools.rows(text, 6)) == {"accelerators_per_node": "0"}
    assert hardware.parse_lscpu(text) == {"host_processors_per_node": "1"}


def test_unsupported_queries_are_left_out():
    rows = machine_tools.rows("Some GPU, [N/A], [Not Supported], , [N/A], [N/A]\n", 6)
    fields = hardware.parse_gpus(rows)
    assert fields == {"accelerators_per_node": "1", "accelerator_model_name": "Some GPU"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A node with a disk of each kind, 100 Gbit/s Ethernet and two InfiniBand ports."""

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", "MemTotal:       536870912 kB\nMemFree: 1 kB\n")
    write("etc/os-release", 'PRETTY_NAME="Ubuntu 18.04.3 LTS"\n')
    for disk, size, spins in (("nvme0n1", 3750748848, 0), ("sda", 1953525168, 1), ("loop0", 100, 0)):
        write(f"sys/block/{disk}/size", f"{size}\n")
        write(f"sys/block/{disk}/queue/rotational", f"{spins}\n")
    write("sys/class/net/eth0/speed", "100000\n")
    write("sys/class/net/eth0/device/vendor", "0x15b3\n")
    write("sys/class/net/docker0/speed", "10000\n")
    for card in ("mlx5_0", "mlx5_1"):
        write(f"sys/class/infiniband/{card}/ports/1/rate", "100 Gb/sec (4X EDR)\n")
    outputs = {"lscpu": XEON, "nvidia-smi": V100}
    monkeypatch.setattr(machine_tools, "output", lambda *command, **_: outputs[command[0]])
    return tmp_path


def test_a_whole_machine(machine):
    actual, missing = systems.detect(machine)
    assert tuple(actual) == NAMES
    assert actual["host_memory_capacity"] == "512.0 GiB"
    assert actual["host_storage_type"] == "NVMe SSD, HDD"
    assert actual["host_storage_capacity"] == "1920 GB, 1000 GB"
    assert actual["host_networking"] == "1 x 100 Gbit/s Ethernet, 2 x 100 Gbit/s InfiniBand"
    assert actual["operating_system"] == "Ubuntu 18.04.3 LTS"
    assert {"submitter", "division", "status", "cooling", "host_processor_interconnect"} <= set(missing)
    assert not {"hw_notes", "accelerator_model_name"} & set(missing)
    assert validate(actual, submission=False) == []


def test_an_empty_machine_is_described_without_a_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_tools, "output", lambda *command, **_: "")
    description, missing = systems.detect(tmp_path)
    assert tuple(description) == NAMES and all(isinstance(value, str) for value in description.values())
    assert "accelerator_model_name" not in missing  # there is no accelerator to describe
    assert "host_memory_capacity" in missing


def test_local_is_this_machine():
    assert systems.load("local") == systems.detect()[0]
