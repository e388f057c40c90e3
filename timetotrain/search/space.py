"""Parses the fields to search and their possible values, and checks them before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from common.config import overrides as configs
from common.config.rules import NAMES, with_every_field
from common.errors import UserError

MOST_CORNERS = 4096
Space = dict[str, BaseDistribution]
FORMS = "FIELD=A,B,C or FIELD=LOW..HIGH or FIELD=LOW..HIGH:log or FIELD=LOW..HIGH:STEP"


def parse(entries: Sequence[str], config: Any) -> Space:
    """Parses the entries of `--space`, each in one of `FORMS`, into a space of fields of `config`.

    Raises UserError if an entry is malformed, or has an unknown field, a value of the wrong type or an empty range.
    """
    space: Space = {}
    # Fields of any of the rules or kinds are known.
    names = [entry.partition("=")[0] for entry in entries]
    config = with_every_field(config, [name for name in NAMES if name in names])
    for entry in entries:
        field, equals, values = entry.partition("=")
        if not equals or not field or not values:
            raise UserError(f"--space {entry}: not understood; write {FORMS}")
        if field in space:
            raise UserError(f"--space {entry}: {field} is there twice")
        space[field] = (
            _range(entry, field, values, config) if ".." in values else _choices(field, values, config)
        )
    return space


def check(space: Space, config: Any) -> None:
    """Refuses a value that makes every corner of the space an invalid configuration.

    A corner combines choices and range ends; the first `MOST_CORNERS` are tried.

    Raises UserError if no corner with some value is valid; the message names the value and the problem.
    """
    ends = {
        field: list(d.choices) if isinstance(d, CategoricalDistribution) else [d.low, d.high]
        for field, d in space.items()
    }
    sound: set[tuple[str, Any]] = set()
    wrong: dict[tuple[str, Any], UserError] = {}
    for corner in itertools.islice(itertools.product(*ends.values()), MOST_CORNERS):
        values = dict(zip(ends, corner))
        try:
            configured(config, values).validate()
            sound.update(values.items())
        except UserError as error:
            for item in values.items():
                wrong.setdefault(item, error)
    for item, error in wrong.items():
        if item not in sound:
            raise UserError(f"--space {item[0]}: {text(item[1])} cannot be: {error}")


def configured(config: Any, values: Mapping[str, Any]) -> Any:
    """Returns `config` with the fields set, in the command line's order.

    Raises UserError: see `common.config.overrides.override`.
    """
    for field, value in sorted(values.items(), key=lambda item: configs.ORDER.get(item[0], 1)):
        config = configs.override(config, field, text(value))
    return config


def text(value: Any) -> str:
    """Formats a value as a flag takes it."""
    return repr(value) if isinstance(value, float) else str(value)


def axes(space: Space) -> dict[str, list[Any]]:
    """Returns every field's values, for a grid. Raises UserError if a range has no step."""
    for field, values in space.items():
        if not isinstance(values, CategoricalDistribution) and (values.step is None or values.log):
            raise UserError(
                f"--space {field}: --sampler=grid needs values (A,B,C) or a step ({FORMS.rpartition(' or ')[2]})"
            )
    return {
        field: list(values.choices)
        if isinstance(values, CategoricalDistribution)
        else [
            values.low + i * values.step for i in range(round((values.high - values.low) / values.step) + 1)
        ]
        for field, values in space.items()
    }


def _choices(field: str, values: str, config: Any) -> CategoricalDistribution:
    choices = values.split(",")
    for choice in choices:
        configs.override(config, field, choice)
    return CategoricalDistribution(choices)


def _range(entry: str, field: str, values: str, config: Any) -> BaseDistribution:
    bounds, _, spacing = values.partition(":")
    low, _, high = bounds.partition("..")
    for bound in (low, high):
        configs.override(config, field, bound)
    try:
        ends = float(low), float(high)
        step = float(spacing) if spacing not in ("", "log") else None
    except ValueError:
        raise UserError(f"--space {entry}: not a range of numbers; write {FORMS}") from None
    log = spacing == "log"
    if ends[0] > ends[1] or (step is not None and step <= 0) or (log and ends[0] <= 0):
        raise UserError(
            f"--space {entry}: an empty range; LOW at most HIGH, a step or the LOW of :log above 0"
        )
    whole = all(end.lstrip("-").isdigit() for end in (low, high)) and _is_whole(config, field)
    if whole:
        if step is not None and step != int(step):
            raise UserError(f"--space {entry}: {field} is a whole number; a step of {spacing} is not")
        return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    return FloatDistribution(*ends, log=log, step=step)


def _is_whole(config: Any, field: str) -> bool:
    if field == "legw":
        return False
    for part in field.split("."):
        config = getattr(config, part)
    return isinstance(config, int)
