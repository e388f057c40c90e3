"""Lists the optimizers' rules and the kinds of schedules, each with its configuration class. TensorFlow-free."""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from common.config import optimizer, schedule
from common.config.optimizer import Optimizer, OwnRule
from common.config.schedule import OwnSchedule, Schedule
from common.config.variants import Variants

C = TypeVar("C")
OPTIMIZERS = Variants(optimizer, Optimizer, OwnRule)
SCHEDULES = Variants(schedule, Schedule, OwnSchedule)
LATER_OPTIMIZERS = tuple(name for name, rule in OPTIMIZERS.classes.items() if rule.later)
_GROUPS: dict[str, Variants[Any]] = {one.base.path: one for one in (OPTIMIZERS, SCHEDULES)}
NAMES = tuple(_GROUPS)  # The fields that name a class.


def variants_of(path: str) -> Variants[Any] | None:
    """Returns the classes among which the field at `path` ("optimizer.name") chooses; None for another field."""
    return _GROUPS.get(path)


def with_every_field(config: C, names: Iterable[str] = NAMES) -> C:
    """Returns a configuration whose optimizer and schedule have the fields of every rule and kind.

    Args:
      names: which of the two, by the fields that name their classes.
    """
    groups = [_GROUPS[name] for name in names]
    return dataclasses.replace(
        config, **{one.group: one.every_field(getattr(config, one.group)) for one in groups}
    )
