"""Helpers for the presets of several benchmarks: names, families scaled by LEGW, logged keys. TensorFlow-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from common.config.clock import Clock
from common.config.legw import legw
from common.config.schema import RunConfig

C = TypeVar("C", bound=RunConfig)


def named(presets: Mapping[str, C]) -> dict[str, C]:
    """Returns the presets in the same order, each with its name in the field `system`."""
    return {name: dataclasses.replace(config, system=name) for name, config in presets.items()}


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
        config = legw(base, factor)
        family[name.format(batch=config.global_batch_size)] = dataclasses.replace(
            config, source=source.format(factor=factor)
        )
    return family


def solver_keys(config: RunConfig) -> dict[str, Any]:
    """Returns log keys for optimizer, rate and schedule, for benchmarks whose MLPerf rules define no such keys."""
    optimizer, schedule = config.optimizer, config.schedule
    return {
        "opt_name": optimizer.name,
        "opt_base_learning_rate": optimizer.base_learning_rate,
        "opt_learning_rate_warmup_epochs": schedule.logged_warmup_epochs(Clock.of(config).steps_per_epoch),
        "opt_learning_rate_schedule": schedule.kind,
        **rule_keys(config),
    }


# For each optimizer of docs/optimizers.md: the fields of `config.optimizer` that it uses besides the learning rate.
_ADAM = ("beta_1", "beta_2", "epsilon", "weight_decay")
_ROOTS = ("matrix_block", "matrix_decay", "root_interval", "root_start")
_READ = {
    "adamw": _ADAM,
    "nadamw": _ADAM,
    "lamb": _ADAM,
    "schedule_free_sgd": ("momentum", "averaging_power", "weight_decay"),
    "schedule_free_adamw": (*_ADAM, "averaging_power"),
    "muon": ("momentum", "nesterov", "orthogonal_steps", "adamw_rate_factor", *_ADAM),
    "shampoo": ("momentum", "nesterov", "grafting", "matrix_epsilon", *_ROOTS, *_ADAM[1:]),
    "soap": (*_ROOTS, *_ADAM),
}
# The rules of round v0.7 name LAMB's decay so.
_KEYS = {"opt_lamb_weight_decay": "opt_lamb_weight_decay_rate"}


def rule_keys(config: RunConfig) -> dict[str, Any]:
    """Returns {"opt_RULE_FIELD": value} of what a rule of docs/optimizers.md reads; {} for another rule."""
    rule = config.optimizer
    found = {f"opt_{rule.name}_{field}": getattr(rule, field) for field in _READ.get(rule.name, ())}
    return {_KEYS.get(key, key): value for key, value in found.items()}


def momentum_key(config: RunConfig) -> dict[str, Any]:
    """Returns {"opt_momentum": value}, or {} for an optimizer without momentum."""
    plain = config.optimizer.has_momentum and not rule_keys(config)
    return {"opt_momentum": config.optimizer.momentum} if plain else {}


def without_metadata(pairs: Mapping[str, Any]) -> list[tuple[str, Any, dict]]:
    """Returns logged keys and values as [(key, value, metadata)], in the same order, with empty metadata."""
    return [(key, value, {}) for key, value in pairs.items()]
