"""Writes result logs like those of full-size runs: closed hyperparameters, the rules' evaluation schedule."""

import hashlib
import json
import random

from compliance.packaging.own_runs import IMPLEMENTATION
from compliance.submission.tree_files import by_number
from tests.compliance.made_logs import record, records_of

# Hyperparameters of published v0.7 entries (Google, tpu-v3-32, tpu-v4-128), samples, evaluation epochs of the
# written rules, and a quality that reaches the target with the last of them.
CLOSED = {
    "resnet": (
        {
            "global_batch_size": 4096,
            "opt_name": "lars",
            "lars_epsilon": 0.0,
            "lars_opt_weight_decay": 0.0002,
            "lars_opt_base_learning_rate": 13.0,
            "lars_opt_learning_rate_warmup_epochs": 2,
            "lars_opt_end_learning_rate": 0.0001,
            "lars_opt_learning_rate_decay_steps": 12169,
            "lars_opt_learning_rate_decay_poly_power": 2,
            "lars_opt_momentum": 0.9,
            "model_bn_span": 128,
        },
        (1281167, 50000),
        range(4, 41, 4),
        0.7605,
    ),
    "ssd": (
        {
            "global_batch_size": 1024,
            "opt_base_learning_rate": 0.0031,
            "opt_learning_rate_decay_boundary_epochs": [40, 50],
            "opt_weight_decay": 0.0005,
            "model_bn_span": 64,
            "max_samples": 50,
            "opt_learning_rate_warmup_factor": 0.0,
            "opt_learning_rate_warmup_steps": 577,
        },
        (117266, 5000),
        (40, 50, 55),
        0.2316,
    ),
    "maskrcnn": (
        {
            "global_batch_size": 256,
            "min_image_size": 800,
            "max_image_size": 1333,
            "num_image_candidates": 1000,
            "opt_learning_rate_decay_factor": 0.1,
            "opt_learning_rate_decay_steps": [5625, 7500],
            "opt_base_learning_rate": 0.24,
            "opt_learning_rate_warmup_steps": 1800,
            "opt_learning_rate_warmup_factor": 0.001,
        },
        (117266, 5000),
        range(1, 18),
        {"BBOX": 0.3785, "SEGM": 0.3412},
    ),
    "transformer": (
        {
            "global_batch_size": 512,
            "opt_name": "adam",
            "opt_base_learning_rate": 1.875,
            "opt_learning_rate_warmup_steps": 1107,
            "opt_adam_beta_1": 0.9,
            "opt_adam_beta_2": 0.98,
            "opt_adam_epsilon": 1e-9,
            "max_sequence_length": (80, {"method": "discard"}),
        },
        (566340, 3003),
        range(1, 4),
        0.2541,
    ),
    "gnmt": (
        {
            "global_batch_size": 8192,
            "opt_learning_rate_alt_decay_func": True,
            "opt_learning_rate_alt_warmup_func": True,
            "opt_base_learning_rate": 0.0045,
            "opt_learning_rate_decay_interval": 241,
            "opt_learning_rate_decay_factor": 0.5,
            "opt_learning_rate_decay_steps": 4,
            "opt_learning_rate_remain_steps": 1924,
            "opt_learning_rate_warmup_steps": 150,
            "max_sequence_length": (48, {"method": "discard"}),
        },
        (3442299, 3003),
        range(1, 7),
        0.2410,
    ),
}


def runs(benchmark):
    """How many runs a score takes (the rules of 2020)."""
    return 10 if benchmark in ("transformer", "gnmt") else 5


def log(
    benchmark,
    index=0,
    *,
    minutes=None,
    status="success",
    org="Example",
    system="dgx-1",
    smoke=False,
    seed=None,
):
    """The text of one v0.7 log; `status` other than success stops the quality short of the target."""
    hyperparameters, (train, evals), epochs, quality = CLOSED[benchmark]
    epochs, lines, clock = list(epochs), [], [1_600_000_000_000 + index * 40_000_000]
    total = (30 + index if minutes is None else minutes) * 60_000
    spread = random.Random(f"{benchmark}{index}")

    def add(key, value=None, event="POINT_IN_TIME", after=1, **metadata):
        clock[0] += after
        lines.append(record(key, value, round(clock[0]), event, **metadata))

    division, submitted = ("open", "research") if smoke else ("closed", "onprem")
    for key, value in (
        ("submission_benchmark", benchmark), ("submission_division", division), ("submission_org", org),
        ("submission_platform", system), ("submission_status", submitted), ("cache_clear", True),
    ):  # fmt: skip
        add(key, value)
    add("init_start", event="INTERVAL_START")
    if smoke:
        add("smoke_run", True)
    add("seed", 1000 + index if seed is None else seed)
    for key, value in hyperparameters.items():
        add(key, value[0], **value[1]) if isinstance(value, tuple) else add(key, value)
    add("train_samples", 64 if smoke else train)
    add("eval_samples", 32 if smoke else evals)
    add("init_stop", event="INTERVAL_END", after=90_000)
    add("run_start", event="INTERVAL_START")
    started, previous = clock[0], 0
    for epoch in epochs:
        share = total * (epoch - previous) / epochs[-1]
        first = {"first_epoch_num": previous + 1, "epoch_count": epoch - previous}
        add("block_start", event="INTERVAL_START", **first)
        add("eval_start", event="INTERVAL_START", after=share * 0.9 - 4, epoch_num=epoch)
        part = 1 - 0.5 * (1 - epoch / epochs[-1]) - spread.uniform(0, 0.01) * (epoch != epochs[-1])
        part = part if status == "success" else part * 0.9
        value = (
            {k: round(v * part, 6) for k, v in quality.items()}
            if isinstance(quality, dict)
            else quality * part
        )
        add("eval_accuracy", value, after=share * 0.1, epoch_num=epoch)
        add("eval_stop", event="INTERVAL_END", epoch_num=epoch)
        add("block_stop", event="INTERVAL_END", **first)
        previous = epoch
    add("run_stop", event="INTERVAL_END", after=max(1, started + total - clock[0]), status=status)
    return "\n".join(lines) + "\n"


def seconds_form(text):
    """The same records as a v0.6 log: `:::MLL <seconds> key: {...}`."""
    lines = []
    for one in records_of(text):
        body = json.dumps({"value": one["value"], "metadata": one["metadata"]})
        lines.append(f":::MLL {one['time_ms'] / 1000:.3f} {one['key']}: {body}")
    return "\n".join(lines) + "\n"


def write_logs(place, benchmark, count=None, **options):
    """`place/result_<i>.txt` of as many runs as a score takes, or of `count`; returns the folder."""
    place.mkdir(parents=True)
    for index in range(runs(benchmark) if count is None else count):
        (place / f"result_{index}.txt").write_text(log(benchmark, index, **options))
    return place


def write_results(folder, benchmark, *, system="dgx-1", description=None, count=None, smoke=False, **options):
    """`folder/<system>/<benchmark>/result_<i>.txt` and run.json, as a run of this repository leaves them."""
    place = write_logs(folder / system / benchmark, benchmark, count, system=system, smoke=smoke, **options)
    records = {}
    for index, path in enumerate(sorted(place.iterdir(), key=by_number)):
        records[path.name] = {
            "system": system, "hardware": system, "seed": 1000 + index, "smoke_run": smoke,
            "quality_target": 0.759, "git": {"commit": "0" * 40, "dirty": False},
            "system_description": description or {}, "implementation": dict.fromkeys(IMPLEMENTATION, "none"),
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()},
        }  # fmt: skip
    (place / "run.json").write_text(json.dumps({"schema": 1, "runs": records}))
    return place
