"""Predicts the two papers' figures that are not scores: shares of a step, speed-ups and scaling.

None of these figures is part of the fit. One input was chosen to match a result: `p100_cluster`'s network bandwidth.
"""

from __future__ import annotations

import dataclasses

import systems
from systems.predict import chips, compute, fitting, hardware, model, published
from systems.predict.hardware import Machine
from systems.predict.workload import Workload

Fact = tuple[str, str, str]


def update_share(benchmark: str) -> float:
    """The fraction of a step on 2,048 cores that the unsharded update takes (section 2 of the pods paper)."""
    work, target = _pod(benchmark, 1024)
    one = model.step(dataclasses.replace(work, shard_update=False), target, fitting.constants("tpu-v3"))
    return one.update / one.total


def _pod(benchmark: str, chips: int, round_: str = "v0.6") -> tuple[Workload, Machine]:
    row = next(
        r
        for r in published.tested()
        if (r.family, r.round, r.benchmark, r.accelerators) == ("tpu-v3", round_, benchmark, chips)
    )
    return published.workload_of(row), published.machine_of(row)


def partition_speedup(benchmark: str, chips: int, partitions: int, batch: int) -> float:
    """Speed-up of a step of `batch` examples on `partitions` cores over one core, on one machine (Figure 10)."""
    work, target = _pod(benchmark, chips)
    values = fitting.constants("tpu-v3")
    replicas = work.cores // partitions
    shared = dataclasses.replace(work, partitions=partitions, batch=batch * replicas)
    alone = dataclasses.replace(work, partitions=1, cores=replicas, batch=batch * replicas)
    few = dataclasses.replace(target, accelerators=max(1, target.accelerators // partitions))
    return model.step(alone, few, values).total / model.step(shared, target, values).total


def pods() -> list[Fact]:
    """The facts of "Scale MLPerf-0.6 models on Google TPU-v3 Pods" (the pods paper)."""
    facts: list[Fact] = [
        ("whole LARS update, ResNet-50, 2,048 cores (section 2)", "6 %", f"{update_share('resnet'):.0%}"),
        (
            "whole Adam update, Transformer, 2,048 cores (section 2)",
            "45 %",
            f"{update_share('transformer'):.0%}",
        ),
    ]
    for parts, said in ((2, "figure only"), (4, "1.6x")):
        facts.append(
            (f"SSD on {parts} cores (figure 10)", said, f"{partition_speedup('ssd', 1024, parts, 4):.2f}x")
        )
    for parts in (2, 4):
        value = partition_speedup("maskrcnn", 128, parts, 2)
        facts.append((f"Mask R-CNN on {parts} cores (figure 10)", "figure only", f"{value:.2f}x"))
    return facts


# Figure 3: eight nodes of four P100 each; clips per second of inference give the networks' relative speed.
def p100_cluster(nodes: int) -> Machine:
    """Builds a machine whose nodes have four P100 each, connected at 10 Gbit/s.

    The paper names neither the network nor the host. 10 Gbit/s is derived from figure 3's result: at that rate
    training hides TSM's gradients but not I3D's. Figure 3 is therefore no test of the model.
    """
    chip = dict(chips.chips()["V100-SXM2"])
    # NVIDIA's data sheet of Tesla P100 SXM2: 10.6 TFLOP/s fp32, 732 GB/s, 56 multiprocessors, four NVLinks of 20 GB/s.
    chip |= {
        "peak": {"fp32": 10.6e12},
        "memory_bandwidth": 732e9,
        "multiprocessors": 56,
        "link_bandwidth": 60e9,
    }
    base = hardware.machine(systems.load("summit-1"), 6, [])
    return dataclasses.replace(
        base, name="p100", accelerators=4 * nodes, per_node=4, node_bandwidth=10e9 / 8, chip=chip
    )


def scaling(name: str, nodes: int, clips: int = 8) -> float:
    """Scaling efficiency: speed on `nodes` P100 nodes divided by `nodes` times the speed on one (figure 3 c)."""
    values = fitting.constants("v100")
    one, many = (_clips_per_second(name, n, clips, values) for n in (1, nodes))
    return many / (nodes * one)


def _clips_per_second(name: str, nodes: int, clips: int, values: compute.Constants) -> float:
    work = published.kinetics_workload(nodes, clips * 4 * nodes, name)
    work = dataclasses.replace(work, cores=4 * nodes, eval_batch=4 * nodes)
    return work.batch / model.step(work, p100_cluster(nodes), values).total


def summit_speed(name: str, nodes: int) -> float:
    """Clips per second on `nodes` nodes of Summit, with eight clips on each V100."""
    work = published.kinetics_workload(nodes, 48 * nodes, name)
    return work.batch / model.step(work, published.kinetics_machine(nodes), fitting.constants("v100")).total


def kinetics() -> list[Fact]:
    """The facts of "Training Kinetics in 15 Minutes"."""
    speed = summit_speed("tsm", 256)
    efficiency = speed / (256 * summit_speed("tsm", 1))
    return [
        ("scaling to 1,536 V100 (figure 6)", "> 80 %", f"{efficiency:.0%}"),
        ("TSM over I3D 3x3x3, 1,536 V100", "1.6x", f"{speed / summit_speed('i3d_3x3x3', 256):.2f}x"),
        ("TSM over I3D 3x1x1, 1,536 V100", "2.9x", f"{speed / summit_speed('i3d_3x1x1', 256):.2f}x"),
        ("TSM on eight nodes of four P100 (figure 3)", "> 98 %", f"{scaling('tsm', 8):.0%}"),
        ("I3D 3x3x3 on eight nodes of four P100", "< 85 %", f"{scaling('i3d_3x3x3', 8):.0%}"),
    ]
