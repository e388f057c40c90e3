"""Defines the configuration of an optimizer: one frozen dataclass for each rule (rules.py). TensorFlow-free.

A rule's class has the fields that the rule reads, with its published defaults: TensorFlow's for Adam and LazyAdam,
tf_keras's for Adagrad, RMSprop and Adadelta, optax's for LAMB, the authors' code for the others.
"""

from __future__ import annotations

import dataclasses
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
    # The field with the share of the average in the weights that are trained, if evaluations use an average of them.
    averaged_by: ClassVar[str] = ""
    # Whether the rule comes from outside this project.
    is_own: ClassVar[bool] = False
    # Fields that must be at least 1.
    counts: ClassVar[tuple[str, ...]] = ()

    @property
    def averaging_beta(self) -> float:
        """The share of the average in the weights that are trained."""
        return getattr(self, self.averaged_by)

    @property
    def short_name(self) -> str:
        """The rule's name without its module, for log keys."""
        return plugins.short(self.name)

    @classmethod
    def own_fields(cls) -> tuple[str, ...]:
        """Returns the names of the fields that this rule has besides the fields of every rule."""
        return tuple(f.name for f in dataclasses.fields(cls) if f.name not in SHARED)

    def every_field(self) -> OwnRule:
        """Returns the values together with the usual ones of the other rules' fields.

        Earlier versions had one class with all fields; digests and overrides in logs keep that form.
        """
        return OwnRule(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    def check(self) -> None:
        """Raises UserError for a value that the rule cannot use."""
        for field in self.counts:
            if getattr(self, field) < 1:
                raise self._refused(field, "must be at least 1")

    def _refused(self, field: str, message: str) -> UserError:
        return UserError(f"config.optimizer.{field}={getattr(self, field)!r}: {message}")


@dataclasses.dataclass(frozen=True)
class _Momentum(Optimizer):
    """A rule with momentum.

    Attributes:
      momentum: decay of the gradient average.
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
            message = f"{self.name} would divide 0 by 0; use a small number such as 1e-8"
            raise self._refused("epsilon", message)
        super().check()


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
    """AdamW: Adam with a weight decay added to its direction."""

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
            raise self._refused(self.averaged_by, f"{self.name} averages the weights by it; use 0.9")
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
    counts: ClassVar[tuple[str, ...]] = ("orthogonal_steps",)


@dataclasses.dataclass(frozen=True)
class _Blocks(_Adaptive):
    """A rule with preconditioners of blocks of a weight.

    Attributes:
      matrix_block: maximum rows and columns of a block (128 in Anil et al. 2020, section 5.2).
      matrix_decay: decay of the running averages of G G' and G' G, for a gradient G; with 1, "shampoo" sums them
        instead.
      root_interval: steps between new roots or bases (SOAP's authors: 10).
      root_start: first step with preconditioners; "shampoo" uses the grafted step before, "soap" Adam's.
    """

    matrix_block: int = later_field(128)
    matrix_decay: float = later_field(0.95)
    root_interval: int = later_field(10)
    root_start: int = later_field(1)
    later: ClassVar[bool] = True
    has_matrices: ClassVar[bool] = True
    counts: ClassVar[tuple[str, ...]] = ("matrix_block", "root_interval", "root_start")

    def check(self) -> None:
        if self.matrix_decay > 1 or (self.name == "soap" and self.matrix_decay == 1):
            raise self._refused("matrix_decay", "must be below 1; only shampoo takes 1 (no decay)")
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
            known = f"unknown{near(self.grafting, GRAFTS)}; known: {', '.join(GRAFTS)}"
            raise self._refused("grafting", known)
        if self.matrix_epsilon <= 0:
            raise self._refused("matrix_epsilon", "roots of singular matrices need more; use 1e-6")
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
    is_own: ClassVar[bool] = True

    def check(self) -> None:
        """Accepts any value: the rule alone knows what it reads."""


SHARED = tuple(field.name for field in dataclasses.fields(Optimizer))
