"""Tests the preset `here`: what it chooses for machines and data, and that given fields stay."""

import dataclasses
import importlib
import math
import pathlib

import pytest

from common.config import automatic, choices, data_description, fitting_batch, hardware
from common.config.benchmarks import NAMES
from common.config.digest import to_dict
from common.config.hardware import Machine
from common.config.run_length import RunLength
from common.errors import UserError
from common.train import checkpoint_file
from timetotrain.run import request
from timetotrain.run.options import BenchmarkFlags

LAPTOP = Machine(cores=2, memory=24 << 30, bf16=True)
SMALL = Machine(cores=2, memory=3 << 30)
SERVER = Machine(cores=64, memory=500 << 30, gpus=(80 << 30,) * 8, bf16=True)
BY_JAX = dataclasses.replace(SERVER, jax=True)
# Sizes of one's own data, in the benchmark's unit; a language model counts words.
SIZES = ({"num_train_examples": 300, "num_eval_examples": 80}, {"num_train_examples": 10**6})


def presets(benchmark):
    return importlib.import_module(f"{benchmark}.presets")


@pytest.mark.parametrize("benchmark", NAMES)
@pytest.mark.parametrize("of", [LAPTOP, SMALL, SERVER, BY_JAX])
def test_a_configuration_is_valid_open_and_without_a_target(benchmark, of):
    for data in (None, *SIZES):
        config, choice_list = automatic.choose(presets(benchmark), (), data, None, of)
        config.validate()
        assert (config.system, config.division, config.smoke_run) == ("here", "open", True)
        assert config.logged_target is None and not config.meets_target(0.0)
        per_device = config.global_batch_size // config.num_groups
        assert per_device & (per_device - 1) == 0, "a power of two"
        fits = 0.8 * min(of.gpus) if of.gpus else 0.5 * of.memory
        cost = presets(benchmark).HERE.example_bytes(config)
        assert per_device == 1 or per_device * cost <= fits - fitting_batch.RESERVE_BYTES
        assert {c.field for c in choice_list} >= {"preset"} and all(c.why for c in choice_list)
        assert config.num_replicas == max(1, len(of.gpus))
        assert config.replicas == ("pjrt" if of.jax else "mirrored" if of.gpus else "single")
        # A rate schedule in steps keeps its part of the run.
        base = presets(benchmark).PRESETS[choice_list[0].value]
        if base.schedule.kind == "gnmt":
            parts = [c.schedule.decay_interval / RunLength.of(c).train_steps for c in (config, base)]
            assert math.isclose(*parts, rel_tol=0.05)


@pytest.mark.parametrize("of", [LAPTOP, SMALL, SERVER])
def test_a_detector_s_batches_count_its_classes(of):
    """With 1,201 and 5,001 classes, the batches were those of one class."""
    module, batches = presets("ssd"), []
    for classes in (2, 1201, 5001, 10_000):
        data = {"num_train_examples": 10**5, "num_eval_examples": 10**4, "num_classes": classes}
        config, choice_list = automatic.choose(module, (), data, None, of)
        part = (0.8 * of.gpus[0] if of.gpus else 0.5 * of.memory) - fitting_batch.RESERVE_BYTES
        part -= module.HERE.weight_bytes(config)
        sizes = [n // config.num_groups for n in (config.global_batch_size, config.eval_batch_size)]
        fit = [n * cost <= part for n, cost in zip(sizes, fitting_batch.example_bytes(module.HERE, config))]
        why = next((c.why for c in choice_list if c.field == "global_batch_size"), "")
        assert all(fit) or (sizes == [1, 1] and "may not hold even one" in why)
        batches.append(sizes)
    assert batches[0] > batches[3]


@pytest.mark.parametrize("benchmark", NAMES)
def test_the_generated_data_keep_the_batch_and_length_of_their_preset(benchmark):
    module = presets(benchmark)
    base = module.PRESETS["cpu-tiny"]
    config, _ = automatic.choose(module, (), None, None, LAPTOP)
    assert config.global_batch_size == fitting_batch.power_of_two(base.global_batch_size)
    assert config.train_epochs == base.train_epochs


@pytest.mark.parametrize(("classes", "part"), [(2, 1.0), (4, 1 / 6), (81, 1 / 48), (201, 1 / 48)])
def test_ssd_s_rate_falls_with_the_number_of_classes(classes, part):
    """At 0.03, tuned on one class, three classes fell to nothing."""
    module = presets("ssd")
    data = {"num_train_examples": 271, "num_eval_examples": 63, "num_classes": classes}
    config, choice_list = automatic.choose(module, (), data, None, LAPTOP)
    rate = module.PRESETS["cpu-nuclei"].optimizer.base_learning_rate
    assert math.isclose(config.optimizer.base_learning_rate, part * rate)
    lines = [str(c) for c in choice_list if c.field == "optimizer.base_learning_rate"]
    assert len(lines) == (part < 1) and all(f"{classes - 1} classes" in line for line in lines)
    rates = [
        automatic.choose(module, (), {**data, "num_classes": n}, None, LAPTOP)[0].optimizer.base_learning_rate
        for n in range(2, 100)
    ]
    assert rates == sorted(rates, reverse=True)
    overrides = [("optimizer.base_learning_rate", "0.02")]
    assert automatic.choose(module, overrides, data, None, LAPTOP)[0].optimizer.base_learning_rate == 0.02
    generated, _ = automatic.choose(module, (), None, None, LAPTOP)
    assert generated.optimizer == module.PRESETS["cpu-tiny"].optimizer


@pytest.mark.parametrize("of", [LAPTOP, SERVER])
def test_a_rate_s_line_says_the_whole_part_of_the_preset_s_rate(of):
    """LEGW's factor for the batch and the part for the classes together."""
    module, data = presets("ssd"), {"num_train_examples": 10**5, "num_eval_examples": 63, "num_classes": 4}
    config, choice_list = automatic.choose(module, (), data, None, of)
    base = module.PRESETS[choice_list[0].value]
    assert (config.global_batch_size != base.global_batch_size) == (of is SERVER)
    ratio = config.optimizer.base_learning_rate / base.optimizer.base_learning_rate
    (line,) = [c.why for c in choice_list if c.field == "optimizer.base_learning_rate"]
    assert f"{ratio:.3g} of the rate of {base.system}" in line


@pytest.mark.parametrize("of", [LAPTOP, SMALL, SERVER])
def test_bf16_is_kept_only_where_the_processor_has_its_instructions(of):
    module = presets("resnet")
    config, choice_list = automatic.choose(module, (), SIZES[0], None, of)
    assert module.PRESETS[choice_list[0].value].precision == "bf16"
    assert config.precision == ("bf16" if of.bf16 else "fp32")
    overridden, _ = automatic.choose(module, [("precision", "bf16")], SIZES[0], None, of)
    assert overridden.precision == "bf16"


@pytest.mark.parametrize(
    ("of", "pictures", "weights", "width"),
    [
        (LAPTOP, 5000, {}, 16),
        (LAPTOP, 5001, {}, 32),
        (SERVER, 2000, {}, 32),
        (LAPTOP, 2000, {"init": "resnet50.npz", "width": 64}, 64),
        (LAPTOP, 2000, {"init": "", "width": 32}, 32),
    ],
)
def test_few_pictures_train_a_narrow_network_on_a_cpu(of, pictures, weights, width):
    data = {"num_train_examples": pictures, "num_eval_examples": 400, "num_classes": 20}
    config, _ = automatic.choose(presets("resnet"), (), data, None, of, weights=weights)
    assert config.width == width


@pytest.mark.parametrize("override", [("replicas", "mirrored"), ("compile", "off")])
def test_a_backend_that_is_given_stays_and_pjrt_compiles_every_step(override):
    config, _ = automatic.choose(presets("mnist"), [override], None, None, BY_JAX)
    assert config.replicas == "mirrored"


def test_a_field_that_is_given_stays_and_the_others_follow_it():
    module = presets("resnet")
    overrides = [("global_batch_size", "16"), ("quality_target", "0.8")]
    config, choice_list = automatic.choose(module, overrides, {"num_train_examples": 10000}, None, LAPTOP)
    assert (config.global_batch_size, config.logged_target) == (16, 0.8)
    assert config.meets_target(0.81) and not config.meets_target(0.79)
    root = math.sqrt(16 / module.PRESETS["cpu-photos"].global_batch_size)
    assert math.isclose(config.optimizer.base_learning_rate, 0.1 * root)
    assert "global_batch_size" not in {c.field for c in choice_list}
    larger, _ = automatic.choose(module, [("image_size", "1024")], None, None, SMALL)
    assert larger.global_batch_size < 16


def test_steps_grow_with_the_root_of_the_examples():
    module = presets("resnet")
    steps = [
        RunLength.of(automatic.choose(module, (), {"num_train_examples": n}, None, LAPTOP)[0]).train_steps
        for n in (10000, 40000)
    ]
    assert math.isclose(steps[1] / steps[0], 2, rel_tol=0.01)


@pytest.mark.parametrize("epochs", [5, 10, 40, 80])
def test_a_short_run_warms_up_for_the_preset_s_steps_or_a_fifth_of_it(epochs):
    module = presets("ssd")
    base = module.PRESETS["cpu-nuclei"]
    data = {"num_train_examples": base.num_train_examples}
    config, _ = automatic.choose(module, [("train_epochs", str(epochs))], data, None, LAPTOP)
    warmup = base.schedule.warmup_epochs * max(1, epochs / base.train_epochs)
    assert config.schedule.warmup_epochs == pytest.approx(min(warmup, epochs / 5))


@pytest.mark.parametrize(
    ("overrides", "data", "patience"),
    [
        ([], SIZES[0], automatic.PATIENCE),
        ([("patience", "2")], SIZES[0], 2),
        ([("train_epochs", "9")], SIZES[0], 0),
        ([("quality_target", "0.9")], SIZES[0], 0),
        ([], None, 0),
    ],
)
def test_a_run_ends_early_unless_its_length_or_target_is_given(overrides, data, patience):
    assert automatic.choose(presets("resnet"), overrides, data, None, LAPTOP)[0].patience == patience
    assert {preset.patience for name in NAMES for preset in presets(name).PRESETS.values()} == {0}


def test_both_targets_of_maskrcnn():
    config, _ = automatic.choose(presets("maskrcnn"), [("quality_target", "0.3")], None, None, LAPTOP)
    assert config.logged_target == {"BBOX": 0.3}
    assert config.meets_target({"BBOX": 0.31, "SEGM": 0.0}) and not config.meets_target(
        {"BBOX": 0.2, "SEGM": 1.0}
    )


def test_a_run_without_a_target_must_be_a_smoke_run():
    config = dataclasses.replace(presets("mnist").PRESETS["cpu-mlp"], quality_target=None)
    with pytest.raises(UserError, match="config.quality_target=none: such a run is not a result"):
        config.validate()


def test_a_folder_says_which_preset_is_nearest(tmp_path):
    module = presets("resnet")
    assert automatic.choose(module, (), None, str(tmp_path), LAPTOP)[1][0].value == "cpu-photos"
    (tmp_path / automatic.TINY_NOTE).write_text("{}")
    assert automatic.choose(module, (), None, str(tmp_path), LAPTOP)[1][0].value == "cpu-tiny"


def test_a_description_gives_counts_and_refuses_a_contradiction(tmp_path):
    files = data_description.listed(tmp_path, [])
    fields = {"num_train_examples": 400, "num_eval_examples": 80, "num_classes": 2}
    data_description.write(
        tmp_path,
        data_description.Description(
            "resnet",
            ("a", "b"),
            fields,
            {},
            files,
            data_description.digest(files),
            "test",
            {"train": 400, "eval": 80},
        ),
    )
    config, choice_list = automatic.configure(presets("resnet"), [], None, 5, str(tmp_path))
    assert (config.num_train_examples, config.num_classes, config.seed) == (400, 2, 5)
    assert config.data.shuffle_buffer == 400 and config.data.cache == "decoded"
    with pytest.raises(UserError, match="contradicts the data"):
        automatic.configure(presets("resnet"), [("num_classes", "3")], None, None, str(tmp_path))
    with pytest.raises(UserError, match="the data are for resnet, not for ssd"):
        automatic.configure(presets("ssd"), [], None, None, str(tmp_path))


def test_the_machine_is_read_from_proc_and_nvidia_smi(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       8388608 kB\n")
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx512_bf16 sse\nbugs : x\n")
    limit = tmp_path / "sys/fs/cgroup"
    limit.mkdir(parents=True)
    machine = hardware.detect(tmp_path)
    assert machine.memory == 8 << 30 and machine.cores >= 1
    (limit / "memory.max").write_text("4294967296\n")
    assert hardware.detect(tmp_path).memory == 4 << 30
    (limit / "memory.max").write_text("max\n")
    assert hardware.detect(tmp_path).memory == 8 << 30
    assert hardware.parse_gpus([["81559", "9.0", "[N/A]"], ["16160", "7.0", ""], ["[N/A]", "9.0", ""]]) == [
        hardware.Gpu(81559 << 20, 9.0),
        hardware.Gpu(16160 << 20, 7.0),
    ]
    assert hardware.parse_gpus([["143771", "9.0", "580.65.06"]]) == [hardware.Gpu(143771 << 20, 9.0, 580)]
    assert hardware.detect(pathlib.Path(tmp_path / "nowhere")).memory == 4 << 30


def test_what_is_done_to_pictures_is_said_even_if_the_preset_stays():
    module = presets("resnet")
    _, choice_list = automatic.choose(
        module, [("data.flip", "false")], {"num_train_examples": 900}, None, LAPTOP
    )
    by_field = {c.field: (c.value, c.why) for c in choice_list}
    base = module.PRESETS[by_field["preset"][0]]
    assert by_field["image_size"] == (base.image_size, choices.SCALED) and "data.flip" not in by_field
    assert by_field["data.area_range"] == (base.data.area_range, choices.CROPPED)
    _, choice_list = automatic.choose(presets("transformer"), [], {"num_train_examples": 367}, None, LAPTOP)
    (line,) = [str(c) for c in choice_list if c.field == "num_train_examples"]
    assert line == "num_train_examples=367: of the data; rows into which the sentence pairs are packed"


def test_stored_weights_are_started_from(tmp_path, monkeypatch):
    module = importlib.import_module("resnet.presets")
    monkeypatch.setenv(automatic.WEIGHTS, str(tmp_path))
    (tmp_path / "resnet").mkdir()

    def start(*overrides):
        data = {"num_classes": 3, "num_train_examples": 400, "num_eval_examples": 40}
        config, _ = automatic.choose(module, overrides, data, machine=LAPTOP)
        return config.init, config.width

    width = module.SMALL_WIDTH
    assert start() == ("", width)
    (tmp_path / "resnet" / "resnet50.npz").touch()
    assert start() == (str(tmp_path / "resnet" / "resnet50.npz"), 64)
    assert start(("init", "")) == ("", width) and start(("width", "32")) == ("", 32)
    assert start(("model", "alexnet_bn")) == ("", module.PRESETS[module.HERE.preset].width)


@pytest.mark.parametrize("benchmark", ["ssd", "maskrcnn", "tsm_kinetics"])
def test_weights_of_ones_own_stay(tmp_path, monkeypatch, benchmark):
    monkeypatch.setenv(automatic.WEIGHTS, str(tmp_path))
    (tmp_path / benchmark).mkdir()
    (tmp_path / benchmark / "stored.npz").touch()
    module, data = presets(benchmark), {"num_train_examples": 400}
    assert automatic.choose(module, (), data)[0].init == str(tmp_path / benchmark / "stored.npz")
    mine, _ = automatic.choose(module, [(module.Config.weights_field, "/mine.npz")], data)
    assert (mine.init, mine.initial_weights_file) == ("", "/mine.npz")


def test_a_resumed_run_keeps_its_weights_and_several_processes_take_none(tmp_path, monkeypatch):
    stored = tmp_path / "resnet" / "resnet50.npz"
    monkeypatch.setenv(automatic.WEIGHTS, str(tmp_path))
    stored.parent.mkdir()
    options = BenchmarkFlags(system="here", data_dir=str(tmp_path), checkpoint_dir=str(tmp_path / "saved"))

    def start():
        config, _ = request.configure("resnet", options, [])
        return config, (config.init, config.width)

    config, from_nothing = start()
    stored.touch()
    with_weights = (str(stored), 64)
    assert start()[1] == with_weights != from_nothing
    with monkeypatch.context() as several:
        several.setenv("HOROVOD_RANK", "1")
        several.setenv("HOROVOD_SIZE", "2")
        assert start()[1] == from_nothing
    meta = {"step": 5, "digest": "", "config": to_dict(config), "benchmark": "resnet", "labels": []}
    checkpoint_file.write(tmp_path / "saved/checkpoint_00000005.npz", {}, meta, {}, keep=2)
    (tmp_path / "saved/checkpoint_00000006.npz").write_text("damaged")
    assert start()[1] == from_nothing
    meta["config"] |= {"init": with_weights[0], "width": 64}
    checkpoint_file.write(tmp_path / "saved/checkpoint_00000005.npz", {}, meta, {}, keep=2)
    stored.unlink()
    assert start()[1] == with_weights
