"""Defines the configuration of an optimizer: one frozen dataclass for each rule, chosen by its name. TensorFlow-free.

A rule's class has the fields that the rule reads, with its published defaults: TensorFlow's for Adam and LazyAdam,
tf_keras's for Adagrad, RMSprop and Adadelta, optax's for LAMB, the authors' code for the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from common.config import plugins
from common.config.closed_fields import later_field
from common.errors import UserError, near

GRAFTS = ("sgd", "adagrad", "adam")


def _name(name: str) -> Any:
    """Declares the name of a rule's class."""
    return dataclasses.field(default=name, init=False)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The fields that act on gradients and weights around every rule.

    Attributes:
      name: the rule, e.g. "sgd", "lars", "adam"; or MODULE:FUNCTION, a rule of your own (docs/extend.md). Each rule has
        fields of its own: `--help --config.optimizer.name=RULE` lists them.
      base_learning_rate: the peak of the schedule.
      weight_decay: the optimizer adds weight_decay * w to the gradient of w, except for `skip_kinds`; the rules of
        docs/optimizers.md add it to the step.
      l2_in_loss: coefficient of an L2 term added to the gradients of all but batch-norm variables, besides
        `weight_decay` (the v0.6 TPU submissions did both; docs/sources.md, mlperf 0.5).
      skip_kinds: kinds of variables without weight decay and without LARS's trust ratio.
      bias_gradient_factor: factor for bias gradients; 2 is Detectron's rule (docs/sources.md, mlperf 1.3).
      clip_norm: maximum global norm of the summed gradient, before any L2 term; 0 is off.
      clip_replica_norm: maximum norm of each replica's own gradient, before the sum (G6 GNMT: 5.0); 0 is off.
      one_warmup_delta: whether the warmup takes one amount off all rates, so that the biases' rate starts at
        (bias_gradient_factor - 1) x the peak (NVIDIA's Mask R-CNN, solver/lr_scheduler.py `mlperf_linear`).
    """

    name: str = _name("")
    base_learning_rate: float = 0.1
    weight_decay: float = 0.0
    l2_in_loss: float = 0.0
    skip_kinds: tuple[str, ...] = ("norm", "bias")
    bias_gradient_factor: float = 1.0
    clip_norm: float = 0.0
    clip_replica_norm: float = 0.0
    one_warmup_delta: bool = later_field(False)

    # Whether docs/optimizers.md describes the rule: a closed run may use it only where the rules of its round name it.
    later: ClassVar[bool] = False
    # Whether the rule needs whole matrices on a replica, which `shard_in_blocks` would cut.
    has_matrices: ClassVar[bool] = False
    # The field with the share of the average in the weights that are trained, for a rule whose evaluation uses an
    # average of the weights (common/optim/schedule_free.py).
    averaged_by: ClassVar[str] = ""

    @property
    def averaging_beta(self) -> float:
        """The share of the average in the weights that are trained."""
        return getattr(self, self.averaged_by)

    @property
    def is_own(self) -> bool:
        """Whether the rule comes from outside this project."""
        return False

    @property
    def short_name(self) -> str:
        """The rule's name without its module, for log keys."""
        return plugins.short(self.name)

    @classmethod
    def own_fields(cls) -> tuple[str, ...]:
        """Returns the names of the fields that this rule has besides those of every rule."""
        return tuple(f.name for f in dataclasses.fields(cls) if f.name not in _SHARED)

    def every_field(self) -> OwnRule:
        """Returns the values together with the usual ones of the other rules' fields.

        Earlier versions had one class with all fields; digests and overrides in logs keep that form.
        """
        return OwnRule(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    def check(self) -> None:
        """Raises UserError for a value that the rule cannot use."""

    def _at_least_one(self, *fields: str) -> None:
        for field in fields:
            if (value := getattr(self, field)) < 1:
                raise UserError(f"config.optimizer.{field}={value}: must be at least 1")


@dataclasses.dataclass(frozen=True)
class _Momentum(Optimizer):
    """A rule with momentum.

    Attributes:
      momentum: decay of the gradient average; in "schedule_free_sgd", the share of the averaged weights in those that
        are trained.
      nesterov: whether to use Nesterov momentum, which looks ahead by one momentum step.
    """

    momentum: float = 0.9
    nesterov: bool = False


@dataclasses.dataclass(frozen=True)
class Sgd(_Momentum):
    """SGD, with momentum.

    Attributes:
      scaled_momentum: v = m v + (g + wd w), w -= lr trust v (figure 5 of the pods paper) instead of
        v = m v + lr trust (g + wd w), w -= v (figure 6); the trust of "sgd" is 1.
    """

    name: str = _name("sgd")
    scaled_momentum: bool = False


@dataclasses.dataclass(frozen=True)
class Lars(Sgd):
    """LARS: SGD with momentum and a trust ratio for each weight.

    Attributes:
      trust_in_velocity: v = m v + trust (g + wd w), w -= lr v, which is momentum corrected by the ratio of the rates
        (NVIDIA's MXNet code, fit.py `SGDwFASTLARS`); with `scaled_momentum`.
      eta: the trust ratio is eta * |w| / (|g| + weight_decay * |w| + epsilon) with the raw gradient g.
      epsilon: a term of the trust ratio; it may be 0.
    """

    name: str = _name("lars")
    trust_in_velocity: bool = later_field(False)
    eta: float = 0.001
    epsilon: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Adaptive(Optimizer):
    """A rule that divides by the root of an average of squares.

    Attributes:
      epsilon: added to the root by the rules that derive from Adam (1e-8 in GNMT, 1e-9 in the Transformer;
        docs/sources.md, mlperf 1.5 and 1.4), under the root by "adagrad", "rmsprop" and "adadelta".
    """

    epsilon: float = 1e-8

    @property
    def needs_epsilon(self) -> bool:
        """Whether the rule would divide 0 by 0 without epsilon."""
        return True

    def check(self) -> None:
        if self.needs_epsilon and self.epsilon <= 0:
            raise UserError(
                f"config.optimizer.epsilon={self.epsilon}: {self.name} would divide 0 by 0; "
                "use a small number such as 1e-8"
            )


@dataclasses.dataclass(frozen=True)
class _Moments(_Adaptive):
    """A rule with Adam's moments.

    Attributes:
      beta_1, beta_2: decay of the moments. The defaults are TensorFlow's, which GNMT uses (docs/sources.md, mlperf
        1.5). The Transformer uses 0.9 / 0.98 up to 512 sequences and 0.86 / 0.92 at 2048 (docs/sources.md, mlperf 1.4).
        "schedule_free_adamw" uses beta_1 as "schedule_free_sgd" uses momentum.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999


@dataclasses.dataclass(frozen=True)
class Adam(_Moments):
    """Adam, in TensorFlow's form.

    Attributes:
      corrected_epsilon: whether epsilon is added to the root of the corrected average, as in PyTorch and Flax, or to
        the plain average's, as in TensorFlow and NVIDIA's FusedAdam (apex/contrib/optimizers).
    """

    name: str = _name("adam")
    corrected_epsilon: bool = later_field(False)


@dataclasses.dataclass(frozen=True)
class LazyAdam(Adam):
    """Adam that updates only the rows of an embedding that have a gradient."""

    name: str = _name("lazy_adam")


@dataclasses.dataclass(frozen=True)
class Adagrad(_Adaptive):
    """Adagrad.

    Attributes:
      initial_accumulator: initial value of the sums of squares; TensorFlow's default.
    """

    name: str = _name("adagrad")
    epsilon: float = 1e-7
    initial_accumulator: float = 0.1

    @property
    def needs_epsilon(self) -> bool:
        return self.initial_accumulator <= 0


@dataclasses.dataclass(frozen=True)
class RMSprop(_Adaptive):
    """RMSprop, without momentum.

    Attributes:
      rho: decay of the averages.
    """

    name: str = _name("rmsprop")
    epsilon: float = 1e-7
    rho: float = 0.9


@dataclasses.dataclass(frozen=True)
class Adadelta(RMSprop):
    """Adadelta (Zeiler 2012), whose paper has rho = 0.95."""

    name: str = _name("adadelta")
    rho: float = 0.95


@dataclasses.dataclass(frozen=True)
class AdamW(_Moments):
    """AdamW: Adam with a weight decay beside its direction."""

    name: str = _name("adamw")
    later: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class NAdamW(AdamW):
    """AdamW with Nesterov momentum."""

    name: str = _name("nadamw")


@dataclasses.dataclass(frozen=True)
class Lamb(AdamW):
    """LAMB: AdamW's step, scaled to the weight's norm."""

    name: str = _name("lamb")
    epsilon: float = 1e-6


@dataclasses.dataclass(frozen=True)
class _ScheduleFree(Optimizer):
    """A rule whose evaluation uses an average of the weights.

    Attributes:
      averaging_power: the average weights a step by (largest rate so far)^this; the authors' value is 2.
    """

    averaging_power: float = later_field(2.0)
    later: ClassVar[bool] = True

    def check(self) -> None:
        if not 0 < self.averaging_beta < 1:
            raise UserError(
                f"config.optimizer.{self.averaged_by}={self.averaging_beta}: {self.name} averages the weights by it; "
                "use 0.9"
            )
        super().check()


@dataclasses.dataclass(frozen=True)
class ScheduleFreeSgd(_ScheduleFree):
    """Schedule-Free SGD.

    Attributes:
      momentum: the share of the averaged weights in those that are trained (its authors' 0.9).
    """

    name: str = _name("schedule_free_sgd")
    momentum: float = 0.9
    averaged_by: ClassVar[str] = "momentum"


@dataclasses.dataclass(frozen=True)
class ScheduleFreeAdamW(_ScheduleFree, _Moments):
    """Schedule-Free AdamW."""

    name: str = _name("schedule_free_adamw")
    averaged_by: ClassVar[str] = "beta_1"


@dataclasses.dataclass(frozen=True)
class Muon(_Moments, _Momentum):
    """Muon for hidden matrices, AdamW for the rest.

    Attributes:
      orthogonal_steps: Newton-Schulz iterations (the author's 5).
      adamw_rate_factor: AdamW's rate for the rest of the weights, as a factor of the rate.
    """

    name: str = _name("muon")
    momentum: float = 0.95
    nesterov: bool = True
    orthogonal_steps: int = later_field(5)
    adamw_rate_factor: float = later_field(1.0)
    later: ClassVar[bool] = True
    has_matrices: ClassVar[bool] = True

    def check(self) -> None:
        self._at_least_one("orthogonal_steps")
        super().check()


@dataclasses.dataclass(frozen=True)
class _Blocks(_Adaptive):
    """A rule with preconditioners of blocks of a weight.

    Attributes:
      matrix_block: maximum rows and columns of a block (128 in Anil et al. 2020, section 5.2).
      matrix_decay: decay of the running averages of G G' and G' G, for a gradient G; with 1, "shampoo" sums them
        instead.
      root_interval: steps between new roots or bases (SOAP's authors: 10).
      root_start: first step with preconditioners; "shampoo" takes the grafted step before, "soap" Adam's.
    """

    matrix_block: int = later_field(128)
    matrix_decay: float = later_field(0.95)
    root_interval: int = later_field(10)
    root_start: int = later_field(1)
    later: ClassVar[bool] = True
    has_matrices: ClassVar[bool] = True

    def check(self) -> None:
        self._at_least_one("matrix_block", "root_interval", "root_start")
        if self.matrix_decay > 1 or (self.name == "soap" and self.matrix_decay == 1):
            raise UserError(
                f"config.optimizer.matrix_decay={self.matrix_decay}: must be below 1, or 1 for shampoo's sums"
            )
        super().check()


@dataclasses.dataclass(frozen=True)
class Shampoo(_Blocks, _Momentum):
    """Shampoo in blocks, with grafting.

    Attributes:
      grafting: the rule that gives the length of a step: "sgd", "adagrad", or "adam" without its first moment.
      matrix_epsilon: ridge of the roots, relative to the largest eigenvalue (Anil et al.: 1e-6).
      beta_2: decay of the squares that "adam" as `grafting` averages.
    """

    name: str = _name("shampoo")
    grafting: str = later_field("adam")
    matrix_epsilon: float = later_field(1e-6)
    beta_2: float = 0.999

    @property
    def needs_epsilon(self) -> bool:
        return self.grafting != "sgd"

    def check(self) -> None:
        if self.grafting not in GRAFTS:
            raise UserError(
                f"config.optimizer.grafting={self.grafting!r}: unknown{near(self.grafting, GRAFTS)}; "
                f"known: {', '.join(GRAFTS)}"
            )
        if self.matrix_epsilon <= 0:
            raise UserError(
                f"config.optimizer.matrix_epsilon={self.matrix_epsilon}: roots of singular matrices need more; use 1e-6"
            )
        super().check()


@dataclasses.dataclass(frozen=True)
class Soap(_Blocks, _Moments):
    """SOAP: Adam in the eigenbases of Shampoo's preconditioners."""

    name: str = _name("soap")
    beta_1: float = 0.95
    beta_2: float = 0.95


@dataclasses.dataclass(frozen=True)
class OwnRule(Lars, Adam, Adadelta, Adagrad, ScheduleFreeSgd, Muon, Shampoo):
    """A rule of your own, MODULE:FUNCTION, which may read every field."""

    name: str = ""
    momentum: float = 0.9
    nesterov: bool = False
    epsilon: float = 0.0
    rho: float = 0.9
    later: ClassVar[bool] = False
    has_matrices: ClassVar[bool] = False
    averaged_by: ClassVar[str] = ""

    @property
    def is_own(self) -> bool:
        return True

    def check(self) -> None:
        """Accepts any value: the rule alone knows what it reads."""


_SHARED = tuple(field.name for field in dataclasses.fields(Optimizer))
_FIRST = (Sgd, Lars, Adam, LazyAdam, Adagrad, RMSprop, Adadelta)
_LATER = (AdamW, NAdamW, Lamb, ScheduleFreeSgd, ScheduleFreeAdamW, Muon, Shampoo, Soap)
RULES: dict[str, type[Optimizer]] = {rule.name: rule for rule in (*_FIRST, *_LATER)}
LATER_OPTIMIZERS = tuple(rule.name for rule in _LATER)


def rule_class(name: str) -> type[Optimizer]:
    """Returns the class of the rule `name`.

    Raises:
      UserError: no rule has this name.
    """
    if plugins.is_own(name):
        return OwnRule
    if name not in RULES:
        raise UserError(
            f"config.optimizer.name={name!r}: unknown{near(name, RULES)}; known: {', '.join(RULES)}"
        )
    return RULES[name]


def named(name: str, **values: Any) -> Optimizer:
    """Returns the configuration of the rule `name`: its defaults, but for `values`.

    Raises:
      UserError: no rule has this name, or it does not have such a field.
    """
    rule = rule_class(name)
    for field, value in values.items():
        if message := refusal(rule, name, field):
            raise UserError(f"config.optimizer.{field}={value}: {message}")
    return rule(**values | ({"name": name} if rule is OwnRule else {}))


def renamed(optimizer: Optimizer, name: str) -> Optimizer:
    """Returns the optimizer with another rule, whose name alone is enough.

    A field that both rules have stays. But it takes the new rule's default where that differs from the usual one
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
    fields = (*rule.own_fields(), *_SHARED)
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
