"""Compares the presets with published_headers.json: logs and launch flags of the published runs.

The file is a second transcription, made from the logs' text by tools/published_headers.py. So an edit of a preset
alone fails here, and so does an edit of the file alone.
"""

import json
import math
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from common.config import benchmarks
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from tests.benchmarks import decay_end, header, preset_of

PUBLISHED = json.loads((Path(__file__).parent / "published_headers.json").read_text())

# Keys of a log that the other form of the same fact replaces.
SPELLINGS = {"'True'": True, "'t2t'": True, "'Adam'": "adam", "'lazy_adam'": "adam"}
PAGE = Path(__file__).parents[2] / "docs" / "presets.md"
BEGIN, END = "<!-- logs: python -m tests.pinned.test_headers -->\n", "<!-- end of logs -->\n"
ABSENT = "absent"
# (presets, key, why the preset's own log says something else, or lacks the key, or alone has it), as fnmatch patterns.
DIFFERENT = [
    ("maskrcnn/tpu-v3-[123]*", "opt_learning_rate_warmup_factor", "their code warms up from 0, as ours"),
    ("maskrcnn/*", "num_image_candidates", "theirs is the number before suppression, ours the one after it"),
    (
        "maskrcnn/*",
        "train_samples",
        "NVIDIA logs the length of its sampler, the most steps; 117,266 images are trained on",
    ),
    ("maskrcnn/*", "eval_samples", "NVIDIA logs a constant 1"),
    ("maskrcnn/*", "opt_name", "the rules have no such key; SGD with momentum here, too"),
    ("transformer/*", "global_batch_size", "tokens there, packed sequences here"),
    ("transformer/*", "opt_base_learning_rate", "the peak there, the factor of the schedule here"),
    ("transformer/*", "train_samples", "pairs there, packed sequences here"),
    ("transformer/*", "benchmark", "not a hyperparameter"),
    ("resnet/dgx*", "*_learning_rate_decay_steps", "the run's epochs there, the decay's steps here"),
    ("resnet/dgx*", "*end_learning_rate", "a constant 1e-4, in `schedule`"),
    ("resnet/dgx*", "*decay_poly_power", "a constant 2, in `schedule`"),
    ("resnet/tpu-v3-*", "lars_opt_momentum", "0.9 is Google's default (lars_util.py)"),
    ("ssd/tpu-v3-*", "max_samples", "all anchors there; the attempts of a crop in every other log"),
    ("ssd/tpu-v*", "train_samples", "all images there, and in `epoch_images`; those with objects here"),
    ("ssd/*", "eval_samples", "NVIDIA leaves out the images without objects"),
    ("ssd/dgx-2h-64", "opt_learning_rate_decay_steps", "the MXNet log lacks it; its boundaries say the same"),
    ("ssd/v100-8", "opt_learning_rate_decay_*", "round v0.6's log lacks it"),
    (
        "ssd/tpu-v3-*",
        "opt_learning_rate_decay_boundary_epochs",
        "round v0.6's logs lack it; the flags have it",
    ),
    ("ssd/*", "sgd", "a seed under a wrong key"),
    ("gnmt/*", "opt_adam_*", "Google's logs lack it; TensorFlow's defaults"),
    ("gnmt/*", "opt_name", "Google's logs lack it"),
]


def _spelling(value: Any) -> Any:
    return SPELLINGS.get(repr(value), value)


def _same(ours: Any, theirs: Any) -> bool:
    ours, theirs = _spelling(ours), _spelling(theirs)
    if ABSENT in (ours, theirs):
        return False
    if isinstance(theirs, (int, float)) and not isinstance(theirs, bool):
        return math.isclose(float(ours), theirs, rel_tol=1e-9)
    return ours == theirs


def _logged(name: str) -> dict[str, Any]:
    """The header of a preset's log, with the numbers of examples that every log has (timetotrain/run/mllog.py)."""
    config = preset_of(name)
    prefix = "num_{}_examples" if "num_train_examples" in PUBLISHED[name]["values"] else "{}_samples"
    counts = {"train": config.num_train_examples, "eval": config.num_eval_examples}
    theirs = PUBLISHED[name]["values"]
    counts = {prefix.format(kind): number for kind, number in counts.items()}
    return header(config) | {key: number for key, number in counts.items() if key in theirs}


def _differences(name: str) -> dict[str, tuple[Any, Any]]:
    ours, theirs = _logged(name), PUBLISHED[name]["values"]
    both = {key: (ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in {**ours, **theirs}}
    return {key: values for key, values in both.items() if not _same(*values)}


def _explanation(name: str, key: str) -> int | None:
    matches = (i for i, (preset, of, _) in enumerate(DIFFERENT) if fnmatch(name, preset) and fnmatch(key, of))
    return next(matches, None)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_logs_what_its_published_log_says(name: str) -> None:
    wrong = _differences(name)
    assert len(set(_logged(name)) & set(PUBLISHED[name]["values"])) >= 4
    assert not {key: values for key, values in wrong.items() if _explanation(name, key) is None}


def test_every_explanation_explains_something() -> None:
    used = {_explanation(name, key) for name in PUBLISHED for key in _differences(name)}
    assert used == set(range(len(DIFFERENT)))


def table() -> str:
    """The page's table: every key that is not equal in both logs, one row for each explanation."""
    rows: dict[int, dict[str, list[str]]] = {}
    equal = 0
    for name in PUBLISHED:
        wrong = _differences(name)
        equal += len({**_logged(name), **PUBLISHED[name]["values"]}) - len(wrong)
        for key in wrong:
            rows.setdefault(_explanation(name, key), {}).setdefault(f"`{key}`", []).append(name)
    lines = [
        f"For {len(PUBLISHED)} presets there is a published log. This project's log and the published log agree on "
        f"{equal} keys. They differ in these:\n",
        "| rows | key | why |\n|---|---|---|",
    ]
    for number, keys in sorted(rows.items()):
        names = sorted({name for of_key in keys.values() for name in of_key})
        benchmark = names[0].partition("/")[0]
        systems = ", ".join(f"`{name.partition('/')[2]}`" for name in names)
        of_benchmark = sum(name.startswith(f"{benchmark}/") for name in PUBLISHED)
        label = systems if len(names) <= 4 else f"{len(names)} of {of_benchmark}"
        lines.append(f"| {benchmark}: {label} | {', '.join(sorted(keys))} | {DIFFERENT[number][2]} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table() -> None:
    """`python -m tests.pinned.test_headers` writes it."""
    assert PAGE.read_text().partition(BEGIN)[2].partition(END)[0] == table()


@pytest.mark.parametrize("preset", ["v100-8", "dgx-1", "dgx-2h", "dgx-2h-10", "dgx-2h-60"])
def test_the_transformer_of_v100s_takes_nvidia_s_tokens_and_peak(preset: str) -> None:
    config, theirs = preset_of(f"transformer/{preset}"), PUBLISHED[f"transformer/{preset}"]["values"]
    assert config.global_batch_size * config.packed_length == theirs["global_batch_size"]
    peak = (
        config.optimizer.base_learning_rate
        * (config.width * theirs["opt_learning_rate_warmup_steps"]) ** -0.5
    )
    assert peak == pytest.approx(theirs["opt_base_learning_rate"], rel=1e-3)


@pytest.mark.parametrize("name", ["resnet/dgx-1", "resnet/dgx-2h", "resnet/dgx-2h-32"])
def test_a_resnet_of_nvidia_s_trains_and_evaluates_as_its_log_says(name: str) -> None:
    """The log gives the length of the run in epochs, under the key of the decay, and an evaluation after epoch 1."""
    config, published = preset_of(name), PUBLISHED[name]
    key = f"{config.optimizer.name}_opt_learning_rate_decay_steps"
    epochs = published["values"][key]
    # Each GPU rounds the steps of its share up (NVIDIA's common/fit.py).
    share = config.num_train_examples // config.num_replicas
    epoch_steps = -(-share // config.micro_batch_size)
    # Google's code adds a step to the decay; NVIDIA's does not.
    assert decay_end(config) == epochs * epoch_steps - 1
    assert header(config)[key] == (epochs - config.schedule.warmup_epochs) * epoch_steps
    evaluated = [block.last_epoch for block in RunLength.of(config).intervals()]
    assert evaluated[:4] == published["evaluated_at"]
    # What is trained after the last evaluation is left out: fit.py evaluates every fourth epoch alone.
    assert evaluated[-1] == config.train_epochs and epochs - 4 < evaluated[-1] <= epochs


def _group(config: RunConfig) -> float:
    """Devices per batch-norm group."""
    return config.batch_norm_span / config.global_batch_size * config.num_replicas


def _drop(which: int) -> Callable[[RunConfig], float]:
    return lambda config: config.schedule.boundaries[which]


def _drop_step(which: int) -> Callable[[RunConfig], float]:
    return lambda c: c.schedule.boundaries[which] * c.examples_per_epoch / c.global_batch_size


def _shards(config: RunConfig) -> float:
    """Groups of devices that hold one image together."""
    return config.num_replicas / config.partitions


# Flag of any published launch -> the same quantity of the preset.
COMMON_FLAGS: dict[str, Callable[[Any], float]] = {
    "batch_size": lambda c: c.global_batch_size,
    "eval_batch_size": lambda c: c.eval_batch_size,
    "input_partition_dims": lambda c: c.partitions,
    "iterations_per_loop": lambda c: c.steps_per_block,
    "num_cores": lambda c: c.num_replicas,
    "num_shards": _shards,
    "train_batch_size": lambda c: c.global_batch_size,
    "train_steps": decay_end,
}
# Benchmark -> its own flags of published launches.
FLAGS: dict[str, dict[str, Callable[[Any], float]]] = {
    "resnet": {
        "distributed_group_size": _group,
        "label_smoothing": lambda c: c.label_smoothing,
        "lars_base_learning_rate": lambda c: c.optimizer.base_learning_rate,
        "base_learning_rate": lambda c: c.optimizer.base_learning_rate,
        "lars_epsilon": lambda c: c.optimizer.epsilon,
        "lars_warmup_epochs": lambda c: c.schedule.warmup_epochs,
        "momentum": lambda c: c.optimizer.momentum,
        "num_replicas": lambda c: c.num_replicas,
        "stop_threshold": lambda c: c.quality_target,
        "weight_decay": lambda c: c.optimizer.weight_decay,
    },
    "ssd": {
        "hparams.base_learning_rate": lambda c: c.optimizer.base_learning_rate * 32 / c.global_batch_size,
        "hparams.conv0_space_to_depth": lambda c: c.space_to_depth,
        "hparams.distributed_group_size": lambda c: _group(c) / c.partitions,
        "hparams.first_lr_drop_epoch": _drop(0),
        "hparams.second_lr_drop_epoch": _drop(1),
        "hparams.lr_warmup_epoch": lambda c: c.schedule.warmup_epochs,
        "hparams.use_bfloat16": lambda c: c.precision == "bf16",
        "num_epochs": lambda c: c.train_epochs,
    },
    "maskrcnn": {
        "hparams.eval_batch_size": lambda c: c.eval_batch_size,
        "hparams.first_lr_drop_step": _drop_step(0),
        "hparams.second_lr_drop_step": _drop_step(1),
        "hparams.iterations_per_loop": lambda c: c.steps_per_block,
        "hparams.learning_rate": lambda c: c.optimizer.base_learning_rate,
        "hparams.lr_warmup_step": lambda c: c.schedule.warmup_steps,
        "hparams.total_steps": decay_end,
        "hparams.train_batch_size": lambda c: c.global_batch_size,
    },
    "transformer": {
        "decode_hparams.alpha": lambda c: c.decode.alpha,
        "decode_hparams.beam_size": lambda c: c.decode.beam_size,
        "decode_hparams.extra_length": lambda c: c.decode.extra_length,
        "decode_hparams.mlperf_threshold": lambda c: c.quality_target,
        "hparams.batch_size": lambda c: c.global_batch_size * c.packed_length / c.num_replicas,
        "hparams.learning_rate_constant": lambda c: c.optimizer.base_learning_rate,
        "hparams.learning_rate_warmup_steps": lambda c: c.schedule.warmup_steps,
        "hparams.max_length": lambda c: c.max_sequence_length,
        "hparams.optimizer_adam_beta1": lambda c: c.optimizer.beta_1,
        "hparams.optimizer_adam_beta2": lambda c: c.optimizer.beta_2,
        "tpu_num_shards": lambda c: c.num_replicas,
    },
    "gnmt": {
        "decay_factor": lambda c: c.schedule.factor,
        "decay_interval": lambda c: c.schedule.decay_interval,
        "decay_start": lambda c: c.schedule.decay_start_step,
        "decay_steps": lambda c: c.schedule.max_decays,
        "infer_batch_size": lambda c: c.eval_batch_size,
        "learning_rate": lambda c: c.optimizer.base_learning_rate,
        "num_buckets": lambda c: len(c.bucket_limits),
        "num_examples_per_epoch": lambda c: c.num_train_examples,
        "warmup_steps": lambda c: c.schedule.warmup_steps,
        "target_bleu": lambda c: 100 * c.quality_target,
    },
}


def _number(flag: str | list[str]) -> float:
    if isinstance(flag, list):
        return math.prod(map(int, flag))
    return {"true": 1.0, "false": 0.0}.get(flag.lower(), None) if flag.isalpha() else float(flag)


@pytest.mark.parametrize("name", [name for name, entry in PUBLISHED.items() if entry["flags"]])
def test_a_preset_runs_with_the_flags_of_its_published_launch(name: str) -> None:
    config, flags = preset_of(name), PUBLISHED[name]["flags"]
    quantities = COMMON_FLAGS | FLAGS[name.partition("/")[0]]
    assert set(flags) <= set(quantities)
    ours = {flag: float(quantities[flag](config)) for flag in flags}
    theirs = {flag: _number(value) for flag, value in flags.items()}
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_the_presets_that_shard_their_update_are_those_whose_source_does() -> None:
    """'Scale MLPerf-0.6 Models on Google TPU-v3 Pods', section 3, names the technique for ResNet-50 and the Transformer
    on 2,048 cores; G7's train.py of both JAX rows passes the optimizer unbroadcast, for XLA to cut."""
    sharded = {
        "resnet/tpu-v3-2048",
        "resnet/tpu-v3-2048-unscaled",
        "resnet/tpu-v3-2048-unscaled-tuned",
        "resnet/tpu-v3-8192-jax",
        "transformer/tpu-v3-2048",
        "transformer/tpu-v3-8192-jax",
    }
    rows = {
        f"{benchmark}/{name}"
        for benchmark in benchmarks.NAMES
        for name, config in benchmarks.module(benchmark, "presets").PRESETS.items()
        if config.hardware.startswith("tpu") and config.communication.weight_update != "whole"
    }
    assert rows == sharded


def test_the_rows_of_the_pods_paper_s_first_table() -> None:
    """Rows of LARS: momentum form, base rate, warmup epochs, momentum, all at a batch of 32,768."""
    rows = {
        "tpu-v3-2048": (True, 31.2, 25, 0.9),
        "tpu-v3-2048-unscaled": (False, 31.2, 25, 0.9),
        "tpu-v3-2048-unscaled-tuned": (False, 29.0, 18, 0.929),
    }
    for name, (scaled, rate, warmup, momentum) in rows.items():
        config = preset_of(f"resnet/{name}")
        optimizer = config.optimizer
        assert (optimizer.scaled_momentum, optimizer.base_learning_rate) == (scaled, rate), name
        assert (config.schedule.warmup_epochs, optimizer.momentum) == (warmup, momentum), name
        assert config.global_batch_size == 32768, name


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
