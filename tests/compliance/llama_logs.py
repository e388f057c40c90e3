"""Writes made-up logs of llama2_70b_lora as rounds 4.0 to 5.1 want them, and what else a submission of one takes."""

import json

import systems
from tests.compliance.made_logs import record

# Converges a little slower than the reference does at batch size 8 (compliance/data/rcp.json).
SAMPLES = 3456
HEADER = {
    "global_batch_size": 8, "opt_base_learning_rate": 0.0004, "opt_learning_rate_training_steps": 1024,
    "opt_gradient_clip_norm": 0.3, "opt_adamw_weight_decay": 0.0001, "gradient_accumulation_steps": 1,
    "lora_alpha": 32, "lora_rank": 16, "train_samples": 3901, "eval_samples": 173,
}  # fmt: skip
RUNS = 10


def log(
    index=0, *, status="success", org="Other Lab", benchmark="llama2_70b_lora", platform="1xbox", seed=None
):
    """The text of one log; with a status other than success the loss stays above its target."""
    clock, lines = 1_700_000_000_000 + index * 10_000_000, []

    def add(key, value=None, after=1000, event="POINT_IN_TIME", **metadata):
        nonlocal clock
        clock += after
        lines.append(record(key, value, clock, event, **metadata))

    for key, value in (
        ("submission_benchmark", benchmark), ("submission_division", "closed"), ("submission_org", org),
        ("submission_platform", platform), ("submission_status", "onprem"), ("cache_clear", True),
    ):  # fmt: skip
        add(key, value)
    add("init_start", event="INTERVAL_START")
    add("seed", 4000 + index if seed is None else seed)
    for key, value in HEADER.items():
        add(key, value)
    add("init_stop", event="INTERVAL_END")
    add("run_start", event="INTERVAL_START")
    for samples in range(1536, SAMPLES + 1, 384):
        place = {"samples_count": samples, "epoch_num": samples / 3901}
        add("block_start", event="INTERVAL_START", samples_count=384)
        add("block_stop", event="INTERVAL_END", after=60_000 + index * 500, samples_count=384)
        add("eval_start", event="INTERVAL_START", **place)
        loss = (
            0.93
            if status != "success"
            else 0.9245
            if samples == SAMPLES
            else 1.2 - samples / 20_000 + index / 10_000
        )
        add("eval_accuracy", loss, **place)
        add("eval_stop", event="INTERVAL_END", **place)
    add("run_stop", event="INTERVAL_END", status=status)
    return "\n".join(lines) + "\n"


def description(**changes):
    """A system description in the words of rounds from 4.0 on."""
    return {
        **systems.load("dgx-1"), "submitter": "Other Lab", "division": "closed",
        "status": "Available on-premise", "system_name": "box", **changes,
    }  # fmt: skip


def tree(org, logs=None, *, system="box", results="results", described="", code=""):
    """Writes a submitter's folder of ten sound runs, or of `logs`; `code`: its folder below that of the benchmark."""
    place = org / results / system / "llama2_70b_lora"
    place.mkdir(parents=True)
    for index, text in enumerate(map(log, range(RUNS)) if logs is None else logs):
        (place / f"result_{index}.txt").write_text(text)
    (org / "systems").mkdir()
    (org / "systems" / f"{system}.json").write_text(described or json.dumps(description()))
    if code:
        (write_code(org / "benchmarks" / "llama2_70b_lora" / code) / ".gitignore").unlink()
    return org


def write_code(folder):
    """A folder of code with the scripts of the rules."""
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("# How to run\n")
    for name in ("setup.sh", "init_datasets.sh", "run_and_time.sh"):
        (folder / name).write_text("#!/bin/bash\necho here: $(basename $PWD) $*\n")
        (folder / name).chmod(0o755)
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text("print('train')\n")
    (folder / ".gitignore").write_text("*.pyc\n")
    return folder
