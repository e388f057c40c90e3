"""Tests which fields of a preset a closed run may change, its initial weights, and their lines in the log."""

import dataclasses
import hashlib
import importlib
import json
import re

import pytest

from common.config import fields
from common.config import overrides as configs
from common.config.closed_fields import closed_rule
from common.config.digest import digest
from common.config.rules import LATER_OPTIMIZERS
from common.errors import UserError
from common.files import ROOT
from compliance.log import rules
from timetotrain.run import closed_division, results
from timetotrain.run.mllog import RunLog


def changed(benchmark, system, *overrides):
    module = importlib.import_module(f"{benchmark}.presets")
    preset = module.PRESETS[system]
    config = preset
    for override in overrides:
        config = configs.override(config, *override.split("=", 1))
    return config, preset, module.hyperparameters


@pytest.mark.parametrize(
    ("benchmark", "system", "overrides", "start"),
    [
        # Fields of the network, the loss and the input without a line in the header.
        ("resnet", "tpu-v4-512", ["width=32"], "config.width=32"),
        (
            "resnet",
            "tpu-v4-512",
            ["implementation=google_v06", "seed=3"],
            "config.implementation=google_v06",
        ),
        ("resnet", "tpu-v4-512", ["data.resize=bilinear"], "config.data.resize=bilinear"),
        ("resnet", "tpu-v4-512", ["optimizer.nesterov=true"], "config.optimizer.nesterov=True"),
        ("transformer", "tpu-v4-16", ["decode.alpha=0.9"], "config.decode.alpha=0.9"),
        ("transformer", "tpu-v4-16", ["layers=2", "heads=8"], "config.layers=2, config.heads=8"),
        ("ssd", "tpu-v4-16", ["width=32"], "config.width=32"),
        # Fields in the header, but in no line that the closed rules require.
        ("tsm_kinetics", "summit-8", ["optimizer.momentum=0.8"], "config.optimizer.momentum=0.8"),
        ("resnet", "tpu-v3-512", ["optimizer.momentum=0.93"], "config.optimizer.momentum=0.93"),
        ("mnist", "cpu-128", ["lstm_units=64"], "config.lstm_units=64"),
        ("ptb", "cpu-20", ["data.eval_split=valid"], "config.data.eval_split=valid"),
        # The rules themselves.
        ("resnet", "tpu-v4-512", ["ruleset=0.6.0"], "config.ruleset=0.6.0"),
        ("resnet", "tpu-v4-512", ["quality_target=0.7"], "config.quality_target=0.7"),
        # Fields of the problem, although a line that the rules require follows them.
        ("resnet", "v100-8", ["num_train_examples=640000"], "config.num_train_examples=640000"),
        ("ssd", "tpu-v3-32", ["implementation=nvidia"], "config.implementation=nvidia"),
        ("maskrcnn", "v100-8", ["short_side=400", "long_side=640"], "config.short_side=400"),
        ("resnet", "cpu-tiny", ["division=closed", "smoke_run=false"], "config.division=closed"),
    ],
)
def test_a_closed_run_cannot_hide_a_field(benchmark, system, overrides, start):
    config, preset, hyperparameters = changed(benchmark, system, *overrides)
    with pytest.raises(UserError) as error:
        closed_division.check(config, preset, hyperparameters)
    text = str(error.value)
    assert text.startswith(start) and "\n" not in text
    assert f"closed rules of {benchmark} {config.ruleset}" in text and "--config.division=open" in text
    closed_division.check(dataclasses.replace(config, division="open"), preset, hyperparameters)


@pytest.mark.parametrize(
    ("benchmark", "system", "overrides"),
    [
        ("resnet", "tpu-v4-512", []),
        ("resnet", "tpu-v4-512", ["optimizer.momentum=0.93", "optimizer.base_learning_rate=9"]),
        ("resnet", "tpu-v4-512", ["schedule.warmup_epochs=9", "train_steps=9000", "batch_norm_span=32"]),
        ("resnet", "tpu-v3-32", ["num_replicas=64", "precision=fp32", "replicas=horovod", "compile=on"]),
        ("resnet", "tpu-v3-32", ["communication.algorithm=2d", "data.cache=none", "space_to_depth=true"]),
        ("transformer", "tpu-v4-16", ["optimizer.beta_2=0.92", "schedule.warmup_steps=700"]),
        ("mnist", "cpu-128", ["legw=8", "compile=on"]),
        ("gnmt", "v100-8", ["num_train_examples=3900000", "vocabulary_size=32320"]),
    ],
)
def test_fields_that_the_rules_free_may_change(benchmark, system, overrides):
    closed_division.check(*changed(benchmark, system, *overrides))


def test_the_freed_hyperparameters_are_those_of_the_rules():
    """SSD, v0.7: rate, decay, warmup, boundaries, span and attempts at a crop (closed/ssd.json)."""
    _, preset, hyperparameters = changed("ssd", "v100-8")
    freed = []
    for field in fields.describe(preset):
        path, value = field.path, field.value
        if isinstance(value, (int, float)) and not isinstance(value, bool) or path == "schedule.boundaries":
            other = (48.0, 60.0) if isinstance(value, tuple) else value * 2 or 2
            one = _replaced(preset, path.split("."), other)
            if not closed_division.not_freed(one, preset, hyperparameters):
                freed.append(path)
    hyper = [path for path in freed if not closed_rule(type(preset), path)]
    assert sorted(hyper) == [
        *("batch_norm_span", "data.crop_attempts", "optimizer.base_learning_rate", "optimizer.weight_decay"),
        *("schedule.boundaries", "schedule.warmup_steps"),
    ]


def _replaced(config, parts, value):
    inner = value if len(parts) == 1 else _replaced(getattr(config, parts[0]), parts[1:], value)
    return dataclasses.replace(config, **{parts[0]: inner})


@pytest.mark.parametrize(
    ("benchmark", "system", "field"),
    [("ssd", "v100-8", "backbone"), ("tsm_kinetics", "summit-8", "initial_weights")],
)
def test_closed_rules_that_start_from_a_trained_network(tmp_path, benchmark, system, field):
    config, preset, hyperparameters = changed(benchmark, system)
    with pytest.raises(
        UserError, match=f"config.{field}: a closed run of {benchmark} starts from an ImageNet"
    ):
        closed_division.check(config, preset, hyperparameters)
    weighted = configs.override(config, field, str(tmp_path / "weights.npz"))
    closed_division.check(weighted, preset, hyperparameters)
    closed_division.check(dataclasses.replace(config, division="open"), preset, hyperparameters)
    with pytest.raises(UserError, match=f"config.{field}=.*weights.npz: No such file"):
        closed_division.initial_weights(weighted)


def test_initial_weights_are_named_by_their_content(tmp_path):
    config, _, _ = changed("ssd", "v100-8")
    assert closed_division.initial_weights(config) == "random"
    path = tmp_path / "weights.npz"
    path.write_bytes(b"weights")
    facts = closed_division.initial_weights(dataclasses.replace(config, backbone=str(path)))
    assert facts == {"file": "weights.npz", "sha256": hashlib.sha256(b"weights").hexdigest()}

    folder = tmp_path / "exported"
    folder.mkdir()
    for name in ("saved_model.pb", "fingerprint.pb"):
        (folder / name).write_text(name)
    exported = dataclasses.replace(config, backbone=str(folder))
    both = hashlib.sha256(b"fingerprint.pbsaved_model.pb").hexdigest()
    assert closed_division.initial_weights(exported) == {"file": "exported", "sha256": both}

    stored = dataclasses.replace(config, backbone="gs://bucket/resnet34.npz")
    assert closed_division.initial_weights(stored) == {"file": "gs://bucket/resnet34.npz"}


def test_log_and_run_json_say_what_was_changed_and_where_it_started(tmp_path):
    path = tmp_path / "resnet34.npz"
    path.write_bytes(b"weights")
    config, preset, hyperparameters = changed("ssd", "v100-8", f"backbone={path}", "num_replicas=16")
    facts = {
        "config_overrides": closed_division.overrides(config, preset),
        "initial_weights": closed_division.initial_weights(config),
    }
    log = RunLog(tmp_path / "result_0.txt", config)
    log.header(hyperparameters(config), False, facts)
    log._file.close()
    lines = [json.loads(line.split(" ", 1)[1]) for line in log._file.path.read_text().splitlines()]
    values = {line["key"]: line["value"] for line in lines}
    assert values["config_overrides"] == {"num_replicas": 16, "backbone": str(path)}
    assert values["config_digest"] == digest(config)
    checksum = hashlib.sha256(b"weights").hexdigest()
    assert values["initial_weights"] == {"file": "resnet34.npz", "sha256": checksum}

    record = results.describe_run(config, [], {}, facts)
    implementation = record["implementation"]
    assert implementation["starting_weights_filename"] == f"resnet34.npz, sha256 {checksum}"
    assert implementation["weight_transformations"] == "kernels transposed to TensorFlow's layout"
    assert record["config_overrides"] == values["config_overrides"]

    random = results.describe_run(preset, [], {}, {**facts, "initial_weights": "random"})["implementation"]
    assert random["starting_weights_filename"] == "none, random initialization from the seed"
    assert random["weight_transformations"] == "none"


@pytest.mark.parametrize("name", LATER_OPTIMIZERS)
def test_a_later_optimizer_needs_the_open_division_unless_the_round_names_it(name):
    """docs/optimizers.md has a table of what the rounds name; none of these benchmarks' rules name one."""
    for benchmark, system in (
        ("resnet", "tpu-v4-512"),
        ("transformer", "tpu-v4-16"),
        ("mnist", "cpu-128"),
        ("ptb", "cpu-20"),
    ):
        config, preset, hyperparameters = changed(benchmark, system, f"optimizer.name={name}")
        config.validate()
        with pytest.raises(UserError, match=f"config.optimizer.name={name}: the closed rules of {benchmark}"):
            closed_division.check(config, preset, hyperparameters)
        closed_division.check(dataclasses.replace(config, division="open"), preset, hyperparameters)


def test_the_benchmarks_that_name_a_later_optimizer_are_those_of_the_page():
    """A closed log of BERT, of a language model or of a generator may name it; the page's table is of these."""
    by_name = {
        name: sorted(
            {
                benchmark
                for ruleset in rules.RULESETS
                for benchmark in rules.benchmarks(ruleset, "closed")
                if name in rules.optimizers(ruleset, benchmark)
            }
        )
        for name in LATER_OPTIMIZERS
    }
    page = (ROOT / "docs/optimizers.md").read_text()
    table = page[page.index("| name | benchmarks, in some rounds |") :]
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \|$", table, re.M)
    assert {name: row.split(", ") for name, row in rows} == {n: row for n, row in by_name.items() if row}


@pytest.mark.parametrize("name", LATER_OPTIMIZERS)
@pytest.mark.parametrize(
    ("benchmark", "system"),
    [("mnist", "cpu-tiny"), ("resnet", "cpu-tiny"), ("transformer", "cpu-tiny"), ("gnmt", "cpu-tiny")],
)
def test_the_header_has_every_value_that_a_later_optimizer_reads(benchmark, system, name):
    config, _, hyperparameters = changed(benchmark, system, f"optimizer.name={name}")
    config.validate()
    keys = [key for key, _, _ in hyperparameters(config)]
    assert len(set(keys)) == len(keys) and "opt_name" in keys
    assert any(key.startswith(f"opt_{name}_weight_decay") for key in keys)
    assert not any(key.startswith(("opt_adam_", f"{name}_opt_momentum")) for key in keys)
