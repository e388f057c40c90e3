"""Tests every TSM preset: valid, equal to Table 3, with a log that this repository's checker accepts."""

import dataclasses
import pathlib
import re

import pytest

from common.config import overrides as configs
from compliance.findings import ERROR
from compliance.log.check_log import check_log
from tests.benchmarks import header, scripted_log
from tests.timetotrain.run.planned import command_of
from tsm_kinetics.config import Config
from tsm_kinetics.presets import PRESETS

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "presets.md"
NAMES = list(PRESETS)

# Table 3 of the paper: nodes, GPUs, clips and frames per step.
TABLE_3 = {
    "summit-1": (1, 6, 96, 768), "summit-8": (8, 48, 384, 3072), "summit-16": (16, 96, 768, 6144),
    "summit-32": (32, 192, 1536, 12288), "summit-64": (64, 384, 3072, 24576),
    "summit-128": (128, 768, 6144, 49152), "summit-256": (256, 1536, 12288, 98304),
    "summit-384": (384, 2304, 18432, 147456), "summit-512": (512, 3072, 24576, 196608),
    "summit-1024": (1024, 6144, 49152, 393216),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE_3)
def test_rows_of_table_3(name: str) -> None:
    nodes, gpus, clips, frames = TABLE_3[name]
    config = PRESETS[name]
    assert (config.hardware, config.num_replicas) == (f"summit-{nodes}", gpus)
    assert (config.global_batch_size, config.global_batch_size * config.frames) == (clips, frames)
    assert config.micro_batch_size == (16 if nodes == 1 else 8)
    assert config.train_epochs == 100


@pytest.mark.parametrize(
    ("name", "accumulated"), [("summit-256-batch-24576", 2), ("summit-256-batch-49152", 4)]
)
def test_simulated_rows_have_the_micro_batch_of_the_machine_they_stand_for(
    name: str, accumulated: int
) -> None:
    config = PRESETS[name]
    assert config.accumulation_steps == accumulated and config.micro_batch_size == 8


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("cpu-")])
def test_the_launcher_is_slurm_with_horovod_on_six_gpus_a_node(name: str) -> None:
    command = command_of("tsm_kinetics", f"--system={name}", "--data_dir=D")
    config = PRESETS[name]
    if config.hardware == "summit-1":
        assert "timetotrain launch" in " ".join(command) and "--processes=6" in command
    else:
        assert command[0] == "sbatch" and "--gpus-per-node=6" in command
        assert f"--nodes={config.num_replicas // 6}" in command
    assert "--replicas=horovod" in command


def faults(config: Config, path: pathlib.Path) -> list[str]:
    scripted_log(config, path)
    findings = check_log(str(path)).findings
    return [f"{finding.rule}: {finding.message}" for finding in findings if finding.severity == ERROR]


@pytest.mark.parametrize("name", NAMES)
def test_the_log_of_a_preset_breaks_nothing_but_the_target(name: str, tmp_path: pathlib.Path) -> None:
    config = PRESETS[name]
    assert config.division == ("open" if name.startswith("cpu-") else "closed")
    actual = faults(config, tmp_path / "result_0.txt")
    # No division accepts a target below the benchmark's.
    low = config.quality_target < 0.74
    broken = ["eval_accuracy.target", "run_stop.status"] if low else []
    assert [fault.partition(":")[0] for fault in actual] == broken


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("model", "tsn", "model"),
        ("train_epochs", "90", "train_epochs"),
        ("num_train_examples", "1000", "train_samples"),
    ],
)
def test_the_checker_rejects_changed_values(path: str, value: str, key: str, tmp_path: pathlib.Path) -> None:
    config = configs.override(PRESETS["summit-1"], path, value)
    assert any(key in fault for fault in faults(config, tmp_path / "result_0.txt"))


def test_docs_name_every_preset() -> None:
    section = DOCS.read_text().partition("\n## tsm_kinetics\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    rows = [name for cell in cells for name in re.findall("`(.*?)`", cell)]
    assert sorted(rows) == sorted(name for name in NAMES if not name.startswith("cpu-"))


def test_header_follows_the_configuration() -> None:
    config = PRESETS["summit-8"]
    for path, value, key in (
        ("global_batch_size", "768", "global_batch_size"),
        ("model", "i3d_3x1x1", "model"),
        ("train_epochs", "50", "train_epochs"),
        ("optimizer.base_learning_rate", "1.5", "opt_base_learning_rate"),
        ("optimizer.momentum", "0.5", "opt_momentum"),
        ("optimizer.weight_decay", "0.25", "opt_weight_decay"),
        ("schedule.warmup_epochs", "7", "opt_learning_rate_warmup_epochs"),
        ("accumulation_steps", "2", "accumulation_steps"),
        ("data.eval_crops", "3", "eval_views"),
    ):
        values = header(config, path, value)
        assert str(values[key]) in (value, f"{value}.0", "30")


def test_a_model_brings_its_frames() -> None:
    frames = {
        name: dataclasses.replace(PRESETS["summit-8"], model=name).frames for name in ("tsm", "i3d_3x3x3")
    }
    assert frames == {"tsm": 8, "i3d_3x3x3": 16}
    assert dataclasses.replace(PRESETS["summit-8"], model="i3d_3x1x1").frames == 32
