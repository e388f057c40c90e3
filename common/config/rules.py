"""Chooses the configuration class of an optimizer rule by its name. TensorFlow-free."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from common.config import optimizer as classes
from common.config import plugins
from common.config.optimizer import SHARED, Optimizer, OwnRule
from common.errors import UserError, near

# Every class of optimizer.py that has a name, in the order of the file.
_SUBCLASSES = (one for one in vars(classes).values() if isinstance(one, type) and issubclass(one, Optimizer))
RULES: dict[str, type[Optimizer]] = {rule.name: rule for rule in _SUBCLASSES if rule.name}
LATER_OPTIMIZERS = tuple(name for name, rule in RULES.items() if rule.later)


def rule_class(name: str) -> type[Optimizer]:
    """Returns the class of the rule `name`.

    Raises UserError: no rule has this name.
    """
    if plugins.is_own(name):
        return OwnRule
    if name not in RULES:
        known = f"unknown{near(name, RULES)}; known: {', '.join(RULES)}"
        raise UserError(f"config.optimizer.name={name!r}: {known}")
    return RULES[name]


def named(name: str, **values: Any) -> Optimizer:
    """Returns the configuration of the rule `name`: its defaults, but for `values`.

    Raises UserError: no rule has this name, or it does not have such a field.
    """
    rule = rule_class(name)
    for field, value in values.items():
        if message := refusal(rule, name, field):
            raise UserError(f"config.optimizer.{field}={value}: {message}")
    return rule(**values | ({"name": name} if rule is OwnRule else {}))


def renamed(optimizer: Optimizer, name: str) -> Optimizer:
    """Returns the optimizer with another rule, whose name alone is enough.

    A field that both rules have stays. But it gets the new rule's default where that differs from the usual one
    (`OwnRule`'s), unless it is an epsilon above 0.
    """
    if name == optimizer.name:
        return optimizer
    rule, usual = rule_class(name), OwnRule()
    defaults = {field.name: field.default for field in dataclasses.fields(rule)}
    values = {}
    for field in (f.name for f in dataclasses.fields(optimizer) if f.init and f.name in defaults):
        value = getattr(optimizer, field)
        if defaults[field] == getattr(usual, field) or (field == "epsilon" and value > 0):
            values[field] = value
    return named(name, **{field: value for field, value in values.items() if field != "name"})


def refusal(rule: type[Optimizer], name: str, field: str) -> str:
    """Returns why the rule `name` refuses a field of other rules; "" if it has the field, or if no rule does."""
    fields = (*rule.own_fields(), *SHARED)
    readers = [other for other, one in RULES.items() if field in one.own_fields()]
    if field in fields or not readers:
        return ""
    return f"{name} does not read it, {', '.join(readers)} do; {name} has {', '.join(fields)}"


def of_saved(values: Mapping[str, Any]) -> tuple[type[Optimizer], dict[str, Any]]:
    """Returns the class of a saved optimizer and its values, without the other rules' fields of earlier versions.

    A name that no rule has is kept: whoever uses a trained network does not need its optimizer.
    """
    name = values.get("name")
    rule = RULES.get(name, OwnRule) if isinstance(name, str) else OwnRule
    return rule, {field: value for field, value in values.items() if not refusal(rule, name, field)}
