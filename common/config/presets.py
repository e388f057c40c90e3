"""What the presets of several benchmarks share: names, families by LEGW's rule, logged keys. TensorFlow-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from common.config.clock import Clock
from common.config.legw import legw
from common.config.schema import RunConfig

C = TypeVar("C", bound=RunConfig)


def named(presets: Mapping[str, C]) -> dict[str, C]:
    """The presets in the same order, each with its name in the field `system`."""
    return {name: dataclasses.replace(config, system=name) for name, config in presets.items()}


def legw_family(base: C, name: str, source: str, doublings: int) -> dict[str, C]:
    """`base` and its batch doubled up to `doublings` times, rate and warmup by LEGW's rule (common/config/legw.py).

    Args:
      name: of each preset; "{batch}" stands for its global batch size.
      source: of each preset; "{factor}" stands for its batch in batches of `base`.
    """
    family = {}
    for factor in (2**i for i in range(doublings + 1)):
        config = legw(base, factor)
        family[name.format(batch=config.global_batch_size)] = dataclasses.replace(
            config, source=source.format(factor=factor)
        )
    return family


def solver_keys(config: RunConfig) -> dict[str, Any]:
    """Logged keys of solver, rate and schedule, for benchmarks whose rules name no keys of their own."""
    optimizer, schedule = config.optimizer, config.schedule
    return {
        "opt_name": optimizer.name,
        "opt_base_learning_rate": optimizer.base_learning_rate,
        "opt_learning_rate_warmup_epochs": schedule.logged_warmup_epochs(Clock.of(config).steps_per_epoch),
        "opt_learning_rate_schedule": schedule.kind,
    }


def momentum_key(config: RunConfig) -> dict[str, Any]:
    """{"opt_momentum": value}, or nothing where the solver has no momentum."""
    return {"opt_momentum": config.optimizer.momentum} if config.optimizer.has_momentum else {}


def without_metadata(pairs: Mapping[str, Any]) -> list[tuple[str, Any, dict]]:
    """Logged keys and values as [(key, value, metadata)], in the same order, metadata empty."""
    return [(key, value, {}) for key, value in pairs.items()]
