"""Reads the published runs as workloads on machines, for fitting and testing the model.

Scores, batches and epochs come from compliance/data/published_scores.csv, with epochs as logged. `_EPOCHS` corrects
logs that count from 0 or name a block still in flight (docs/sources.md, mlperf 1, and the numbers of evaluations in
the logs). Partitions, span and cache come from the submissions' scripts, as in the benchmarks' presets.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path

import systems
from systems.predict import hardware, model, workload
from systems.predict.hardware import Machine
from systems.predict.workload import Workload

_SCORES = Path(__file__).resolve().parents[2] / "compliance/data/published_scores.csv"
SEQUENCE = 256  # Tokens per packed sequence; NVIDIA counts the transformer's batch in tokens.


@dataclasses.dataclass(frozen=True)
class Row:
    """A published score. `batch` is in examples (transformer: packed sequences), `seconds` is the score."""

    round: str
    org: str
    system: str
    benchmark: str
    accelerators: int
    seconds: float
    batch: float
    epochs: float

    @property
    def key(self) -> str:
        """The system and its round; a fit leaves out rows with equal keys together."""
        return f"{self.round}/{self.system}"

    @property
    def is_tpu(self) -> bool:
        return self.system.startswith("tpu")

    @property
    def preset(self) -> str:
        """The preset with the row's configuration; "" if there is none.

        The Transformer's rows with 8,192 cores use four cores per sequence; the presets use one (docs/sources.md,
        mlperf 3).
        """
        when = (self.round, self.benchmark)
        if not self.is_tpu or (when[1], self.accelerators) == ("transformer", 4096):
            return ""
        name = _PRESETS.get((self.round, self.system, self.benchmark)) or _PRESETS.get(
            (self.round, self.system)
        )
        return self.system.removesuffix("-TF") if name is None else name

    @property
    def family(self) -> str:
        """The family whose constants predict the row; "" for accelerators without fitted constants."""
        if self.system.startswith("tpu-v3"):
            return "tpu-v3"
        return "v100" if self.system.startswith(("dgx1", "dgx2", "gpu-v100", "summit")) else ""


# Rows whose preset has another name than their system; "" means no preset.
_PRESETS = {
    ("v0.7", "tpu-v3-32-TF2.0"): "tpu-v3-32-v0.7",
    ("v0.7", "tpu-v3-8192-JAX"): "tpu-v3-8192-jax",
    ("v0.7", "tpu-v3-1024-TF", "gnmt"): "tpu-v3-1024-v0.7",
    ("v0.7", "tpu-v3-4096-JAX"): "",
}

# (round, org, benchmark, batch or None, prefix of the system's name, correction added to the logged epoch).
_EPOCHS = (
    # Logs with three evaluations end at epoch 2, with fifteen at 14, with ten (3, 7, ... 39) at 38.
    ("v0.6", "Google", "transformer", 512, "tpu", 1.0),
    ("v0.6", "Google", "maskrcnn", None, "tpu", 1.0),
    ("v0.7", "Google", "resnet", None, "tpu-v3-32-TF2", 1.0),
    # The eleventh evaluation, at "42", comes after 44 epochs (resnet/presets.py).
    ("v0.7", "Google", "resnet", None, "tpu-v4-16", 2.0),
    ("v0.7", "Google", "resnet", None, "tpu-v4-128", 2.0),
    # The run stops when the evaluation of the second-to-last block is known (docs/sources.md, mlperf 1.2).
    ("v0.6", "Google", "ssd", 1024, "tpu", -5.4),
    ("v0.6", "Google", "ssd", 2048, "tpu", -5.4),
)


@functools.cache
def rows() -> tuple[Row, ...]:
    """All published rows, even of accelerators without fitted constants: epochs do not depend on the machine."""
    with _SCORES.open(encoding="utf-8") as lines:
        return tuple(_row(fields) for fields in csv.DictReader(lines))


def _row(fields: dict[str, str]) -> Row:
    batch = float(fields["global_batch_size"])
    epochs = float(fields["epochs_to_converge"])
    for when, org, benchmark, size, start, extra in _EPOCHS:
        same = (when, org, benchmark) == (fields["round"], fields["org"], fields["benchmark"])
        if same and size in (None, batch) and fields["system"].startswith(start):
            epochs += extra
    if fields["benchmark"] == "transformer" and fields["org"] == "NVIDIA":
        batch /= SEQUENCE
    return Row(
        fields["round"],
        fields["org"],
        fields["system"],
        fields["benchmark"],
        int(fields["n_accelerators"]),
        60 * float(fields["score_minutes"]),
        batch,
        epochs,
    )


def tested() -> list[Row]:
    """The rows whose time is predicted: TPU v3 and V100, both rounds."""
    return [row for row in rows() if row.family]


def held_out() -> list[Row]:
    """The TPU v4 rows: no formula is fitted to them; their compiled programs have one factor (program_fit.py)."""
    return [row for row in rows() if row.system.startswith("tpu-v4")]


# Training Kinetics in 15 Minutes, Table 3: nodes, clips per batch, seconds; six V100 per node, 100 epochs, fp32.
KINETICS = (
    (1, 96, 179_700),
    (8, 384, 25_620),
    (16, 768, 13_080),
    (32, 1536, 6_600),
    (64, 3072, 3_356),
    (128, 6144, 1_694),
    (256, 12288, 853),
    (384, 18432, 609),
)


@functools.cache
def machine_of(row: Row) -> Machine:
    """Returns a tested row's machine."""
    if row.is_tpu:
        description = systems.load("tpu-v3-32" if row.family else "tpu-v4-16")
    elif row.system.startswith("gpu-v100"):
        description = systems.load("v100-8")
    elif row.system.startswith("dgx1"):
        description = systems.load("dgx-1")
    else:
        description = systems.load("dgx-2h")
        if not row.system.startswith("dgx2h"):  # a DGX-2: 350 W, 1.597 GHz (NVIDIA's data sheet)
            description = description | {"accelerator_frequency": "1.597 GHz"}
    return hardware.machine(description, row.accelerators, [])


# Google's scripts (docs/sources.md, mlperf 1): partitions by (benchmark, cores); batch-norm span; decoded caches.
_PARTITIONS = {
    ("ssd", 1024): 4,
    ("ssd", 2048): 4,
    ("ssd", 8192): 8,
    ("maskrcnn", 128): 4,
    ("maskrcnn", 256): 4,
    ("maskrcnn", 1024): 8,
    ("transformer", 8192): 4,
}
_SPANS = {512: 64, 1024: 32, 2048: 128, 8192: 64}
# Examples per epoch: ImageNet; COCO with and without images that lack boxes; packed sequences (1087 x 512; 1637 x 320
# in NVIDIA's v0.6 DGX-1 log); sentence pairs up to 48 and up to 75 words (1938 steps of 2048, ibid.).
_EXAMPLES = {
    "resnet": (1_281_167, 1_281_167),
    "ssd": (118_287, 117_266),
    "maskrcnn": (118_287, 117_266),
    "transformer": (560_000, 523_840),
    "gnmt": (3_442_299, 3_969_024),
}
_EVAL = {"resnet": 50_000, "ssd": 5_000, "maskrcnn": 5_000, "transformer": 3_003, "gnmt": 3_003}
# First evaluation and interval of later ones, in epochs: Google v0.6, Google v0.7, NVIDIA.
_SCHEDULES = {
    "resnet": ((4, 4), (4, 4), (4, 4)),
    "ssd": ((32.5, 6.5), (5, 5), (33, 9)),
    "maskrcnn": ((1, 1), (1, 1), (1, 1)),
    "transformer": ((1, 1), (1, 1), (1, 1)),
    "gnmt": ((1, 1), (1, 1), (1, 1)),
}
_NETWORKS = {"resnet": "resnet50", "transformer": "transformer_big"}


def network_of(benchmark: str) -> str:
    """The network of a benchmark's published runs."""
    return _NETWORKS.get(benchmark, benchmark)


@functools.cache
def workload_of(row: Row) -> Workload:
    """Returns a tested row's workload."""
    google, name = row.org == "Google", row.benchmark
    tpu = row.is_tpu
    cores = row.accelerators * (2 if tpu else 1)
    partitions = _PARTITIONS.get((name, cores), 1) if tpu else 1
    schedule = _SCHEDULES[name][(0 if row.round == "v0.6" else 1) if google else 2]
    steps, beams = workload.SEARCH.get(name, (0, 1))
    replicas = cores // partitions
    half = not tpu or (name, cores) == ("transformer", 32) or (name, row.round) == ("gnmt", "v0.7")
    work = Workload(
        benchmark=name,
        network=network_of(name),
        recipe=row.round,
        batch=round(row.batch),
        cores=cores,
        examples=_EXAMPLES[name][0 if google else 1],
        eval_examples=_EVAL[name],
        eval_batch=_eval_batch(row, replicas),
        partitions=partitions,
        span=_span(row, cores) if tpu else 0,
        precision="bf16" if tpu else "fp16",
        wire=2 if half else 4,
        shard_update=tpu,
        optimizer={"resnet": "lars", "ssd": "sgd", "maskrcnn": "sgd"}.get(name, "adam"),
        first_evaluation=schedule[0],
        evaluation_every=schedule[1],
        decode_steps=steps,
        beams=beams,
        host_evaluation=workload.HOST_EVALUATION.get(name, 0.0),
        blocking=not google,
        decoded_cache=google and name == "resnet" and cores in (32, 128, 8192),
    )
    return model.with_buckets(work)


def _eval_batch(row: Row, replicas: int) -> int:
    """The evaluation batch: the training batch, capped at all examples, rounded to whole replicas."""
    wanted = min(max(row.batch, replicas), _EVAL[row.benchmark])
    if row.benchmark in ("transformer", "gnmt"):
        wanted = min(_EVAL[row.benchmark], max(512, replicas))
    return max(1, -(-int(wanted) // replicas)) * replicas


def _span(row: Row, cores: int) -> int:
    if row.benchmark == "resnet":
        return _SPANS.get(cores, 128)
    return 64 if row.benchmark == "ssd" else 0


def kinetics_workload(nodes: int, batch: int, network_name: str = "tsm") -> Workload:
    """The workload of a row of Table 3, or of the same row with I3D: 100 epochs, one evaluation at the end."""
    frames = {"tsm": 1.0, "tsn": 1.0, "i3d_3x3x3": 2.0, "i3d_3x1x1": 4.0}[network_name]
    work = Workload(
        benchmark="tsm_kinetics",
        network=network_name,
        recipe="fixed",
        batch=batch,
        cores=6 * nodes,
        examples=240_436,
        eval_examples=10 * 19_796,  # ten clips per video, together on a GPU
        eval_batch=10 * 6 * nodes,
        precision="fp32",
        wire=4,
        optimizer="sgd",
        first_evaluation=100,
        evaluation_every=100,
        epochs=100.0,
        frames=frames,
    )
    return model.with_buckets(work)


@functools.cache
def kinetics_machine(nodes: int) -> Machine:
    return hardware.machine(systems.load("summit-1"), 6 * nodes, [])
