"""The fields that each optimizer rule reads, and its published defaults where they are its own. TensorFlow-free."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from common.config import plugins
from common.errors import UserError

C = TypeVar("C")  # An Optimizer of common/config/schema.py.

# Fields that act on gradients and weights around every rule.
SHARED = (
    *("name", "base_learning_rate", "weight_decay", "l2_in_loss", "skip_kinds", "bias_gradient_factor"),
    *("one_warmup_delta", "clip_norm", "clip_replica_norm"),
)
_ADAM = ("beta_1", "beta_2", "epsilon")
_ROOTS = ("matrix_block", "matrix_decay", "root_interval", "root_start")
READ: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "nesterov", "scaled_momentum"),
    "lars": ("momentum", "nesterov", "scaled_momentum", "trust_in_velocity", "eta", "epsilon"),
    "adam": (*_ADAM, "corrected_epsilon"),
    "lazy_adam": (*_ADAM, "corrected_epsilon"),
    "adagrad": ("initial_accumulator", "epsilon"),
    "rmsprop": ("rho", "epsilon"),
    "adadelta": ("rho", "epsilon"),
    "adamw": _ADAM,
    "nadamw": _ADAM,
    "lamb": _ADAM,
    "schedule_free_sgd": ("momentum", "averaging_power"),
    "schedule_free_adamw": (*_ADAM, "averaging_power"),
    "muon": ("momentum", "nesterov", "orthogonal_steps", "adamw_rate_factor", *_ADAM),
    "shampoo": ("momentum", "nesterov", "grafting", "matrix_epsilon", *_ROOTS, *_ADAM[1:]),
    "soap": (*_ROOTS, *_ADAM),
}
# Defaults other than the fields' own: TensorFlow's Adam and tf_keras's Adagrad, RMSprop and Adadelta; optax's LAMB;
# the authors' code of the others.
_DEFAULTS: dict[str, dict[str, object]] = {
    **{name: {"epsilon": 1e-8} for name, fields in READ.items() if "epsilon" in fields},
    "lars": {},
    **{name: {"epsilon": 1e-7} for name in ("adagrad", "rmsprop")},
    "adadelta": {"epsilon": 1e-7, "rho": 0.95},
    "lamb": {"epsilon": 1e-6},
    "muon": {"epsilon": 1e-8, "momentum": 0.95, "nesterov": True},
    "soap": {"epsilon": 1e-8, "beta_1": 0.95, "beta_2": 0.95},
}


def renamed(optimizer: C, name: str) -> C:
    """Returns the optimizer with another rule, whose name alone is enough.

    A field that the rule before did not read takes the new rule's default, and so does one for which the new rule has
    a default of its own, unless that is an epsilon above 0. Other fields stay: the rate, the decay, what both read.
    """
    before, own = READ.get(optimizer.name, ()), _DEFAULTS.get(name, {})
    if name == optimizer.name:
        return optimizer
    changes = {}
    for field in dataclasses.fields(optimizer):
        kept = field.name in before and (
            field.name not in own or (field.name == "epsilon" and optimizer.epsilon > 0)
        )
        if field.name in READ.get(name, ()) and not kept:
            changes[field.name] = own.get(field.name, field.default)
    return dataclasses.replace(optimizer, name=name, **changes)


def check_field(optimizer: C, field: str, flag: str) -> None:
    """Raises UserError if the optimizer's rule does not read a field; a rule of one's own may read each."""
    name = optimizer.name
    if plugins.is_own(name) or name not in READ or field in SHARED or field in READ[name]:
        return
    readers = ", ".join(rule for rule, fields in READ.items() if field in fields)
    raise UserError(
        f"{flag}: {name} does not read it, {readers} do; {name} has {', '.join((*READ[name], *SHARED))}"
    )
