"""Helpers for the presets of several benchmarks: names, families scaled by LEGW, logged keys. TensorFlow-free."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from common.config.legw import legw
from common.config.rules import OPTIMIZERS
from common.config.run_length import RunLength
from common.config.schema import RunConfig

C = TypeVar("C", bound=RunConfig)
_NEAREST = ("tpu-v4-16", "tpu-v3-256", "dgx-1")  # Published rows that presets of later machines follow.


def with_names(presets: Mapping[str, C]) -> dict[str, C]:
    """Returns the presets in the same order, each with its name in the field `system`."""
    return {name: dataclasses.replace(config, system=name) for name, config in presets.items()}


def published(presets: Mapping[str, C]) -> dict[str, C]:
    """Returns the presets of published rows: a row's name replaces "{name}" in `source`, and is its `hardware`.

    A row on another machine than its name says has `hardware` already.
    """
    filled = {}
    for name, config in presets.items():
        machine = name if config.hardware == RunConfig.hardware else config.hardware
        filled[name] = dataclasses.replace(config, source=config.source.format(name=name), hardware=machine)
    return filled


def legw_family(base: C, name: str, source: str, doublings: int) -> dict[str, C]:
    """Returns `base` and presets with its batch doubled 1 to `doublings` times, scaled by LEGW (common/config/legw.py).

    Args:
      base: the tuned configuration.
      name: template for preset names; "{batch}" is the preset's global batch size.
      source: template for preset sources; "{factor}" is the preset's batch divided by the base's batch.
      doublings: number of presets besides `base`.
    """
    family = {}
    for factor in (2**i for i in range(doublings + 1)):
        config = dataclasses.replace(legw(base, factor), source=source.format(factor=factor))
        family[name.format(batch=config.global_batch_size)] = config
    return family


def later_machines(published: Mapping[str, C], batches: tuple[str, str, str]) -> dict[str, C]:
    """Returns presets for TPU v5e and v6e, H100, H200 and B200, which run through jax.

    Each has the batch and schedule of the nearest published row: `tpu-v4-16`, `tpu-v3-256` or `dgx-1`. The division
    is open because nobody has submitted these values on these machines. Precision (bf16 needs no loss scale) and
    micro-batches are the defaults.

    Args:
      published: the benchmark's published presets.
      batches: the batch of each of the three rows in words, for the presets' sources.
    """
    rows: list[C] = []
    for name, batch, devices in zip(_NEAREST, batches, ("16 cores", "256 cores", "8 GPUs"), strict=True):
        row = published[name]
        source = f"as {name}, round v{row.ruleset[:3]}: {batch} on {devices}"
        values = {"source": source, "division": "open", "replicas": "pjrt", "precision": type(row).precision}
        rows.append(dataclasses.replace(row, **values, loss_scale=1.0, accumulation_steps=1))
    of_16, of_256, of_8 = rows
    # One GPU runs the eight GPUs' micro-batches one after another.
    size = of_8.eval_batch_size // 8
    alone = dataclasses.replace(of_8, num_replicas=1, accumulation_steps=8, eval_batch_size=size)
    machines = {
        **{f"tpu-v{kind}e-{cores}": row for kind in (5, 6) for cores, row in ((16, of_16), (256, of_256))},
        **{f"h{kind}-{gpus}": row for kind in (100, 200) for gpus, row in ((1, alone), (8, of_8))},
        "b200-8": of_8,
    }
    return {name: dataclasses.replace(config, hardware=name) for name, config in machines.items()}


def solver_keys(config: RunConfig) -> dict[str, Any]:
    """Returns log keys for optimizer, rate and schedule, for benchmarks whose MLPerf rules define no such keys."""
    optimizer, schedule = config.optimizer, config.schedule
    return {
        "opt_name": optimizer.name,
        "opt_base_learning_rate": optimizer.base_learning_rate,
        "opt_learning_rate_warmup_epochs": schedule.logged_warmup_epochs(
            RunLength.of(config).steps_per_epoch
        ),
        "opt_learning_rate_schedule": schedule.kind,
        **rule_keys(config),
    }


# The rules of round v0.7 name LAMB's decay so.
_KEYS = {"opt_lamb_weight_decay": "opt_lamb_weight_decay_rate"}


def rule_keys(config: RunConfig) -> dict[str, Any]:
    """Returns {"opt_RULE_FIELD": value} of what a rule of docs/optimizers.md reads; {} for another rule."""
    rule = config.optimizer
    if not rule.later:
        return {}
    values = {field: getattr(rule, field) for field in (*OPTIMIZERS.own_fields(type(rule)), "weight_decay")}
    keys = {field: f"opt_{rule.name}_{field}" for field in values}
    return {_KEYS.get(keys[field], keys[field]): value for field, value in values.items()}


def momentum_key(config: RunConfig) -> dict[str, Any]:
    """Returns {"opt_momentum": value}, or {} for an optimizer without momentum."""
    optimizer = config.optimizer
    return {"opt_momentum": optimizer.momentum} if optimizer.name in ("sgd", "lars") else {}


def without_metadata(pairs: Mapping[str, Any]) -> list[tuple[str, Any, dict]]:
    """Returns logged keys and values as [(key, value, metadata)], in the same order, with empty metadata."""
    return [(key, value, {}) for key, value in pairs.items()]
