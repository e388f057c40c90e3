"""Defines the configuration of an optimizer: one frozen dataclass for each rule (rules.py). TensorFlow-free.

A rule's class has the fields that the rule reads, with its published defaults: TensorFlow's for Adam and LazyAdam,
tf_keras's for Adagrad, RMSprop and Adadelta, optax's for LAMB, the authors' code for the others.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from common.config import plugins
from common.config.closed_fields import added_field
from common.config.variants import Variant, variant_name


@dataclasses.dataclass(frozen=True)
class Optimizer(Variant):
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
      clip_epsilon: added to that norm (PyTorch and Megatron: 1e-6).
      clip_replica_norm: maximum norm of each replica's own gradient, before the sum (G6 GNMT: 5.0); 0 is off.
      sums_examples: whether clipping and rule see the gradient of the sum of all examples' losses, not of their mean
        (G6 GNMT nmt/model.py 828, G7 model.py 773: reduce_sum). A replica's norm is then that of its own sum.
      one_warmup_delta: whether the warmup takes one amount off all rates, so that the biases' rate starts at
        (bias_gradient_factor - 1) x the peak (NVIDIA's Mask R-CNN, solver/lr_scheduler.py `mlperf_linear`).
    """

    name: str = variant_name("")
    base_learning_rate: float = 0.1
    weight_decay: float = 0.0
    l2_in_loss: float = 0.0
    skip_kinds: tuple[str, ...] = ("norm", "bias")
    bias_gradient_factor: float = 1.0
    clip_norm: float = 0.0
    clip_replica_norm: float = 0.0
    sums_examples: bool = added_field(False)
    one_warmup_delta: bool = added_field(False)
    clip_epsilon: float = added_field(0.0)

    path: ClassVar[str] = "optimizer.name"
    # Whether docs/optimizers.md describes the rule: a closed run may use it only where the rules of its round name it.
    later: ClassVar[bool] = False
    # Whether rows of an embedding that have no gradient stay as they are.
    skips_rows: ClassVar[bool] = False

    @property
    def short_name(self) -> str:
        """The rule's name without its module, for log keys."""
        return plugins.short(self.name)

    def check(self) -> None:
        """Raises UserError for a value that the rule cannot use."""


@dataclasses.dataclass(frozen=True)
class Sgd(Optimizer):
    """SGD, with momentum.

    Attributes:
      momentum: decay of the gradient average.
      nesterov: whether to use Nesterov momentum, which looks ahead by one momentum step.
      scaled_momentum: v = m v + (g + wd w), w -= lr trust v (figure 5 of the pods paper) instead of
        v = m v + lr trust (g + wd w), w -= v (figure 6); the trust of "sgd" is 1.
    """

    name: str = variant_name("sgd")
    momentum: float = 0.9
    nesterov: bool = False

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

    name: str = variant_name("lars")
    trust_in_velocity: bool = added_field(False)
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
            raise self.refused("epsilon", message)
        super().check()


@dataclasses.dataclass(frozen=True)
class _Moments(_Adaptive):
    """A rule with Adam's moments.

    Attributes:
      beta_1, beta_2: decay of the moments. The defaults are TensorFlow's, which GNMT uses (docs/sources.md, mlperf
        1.5). The Transformer uses 0.9 / 0.98 up to 512 sequences and 0.86 / 0.92 at 2048 (docs/sources.md, mlperf 1.4).
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

    name: str = variant_name("adam")
    corrected_epsilon: bool = added_field(False)


@dataclasses.dataclass(frozen=True)
class LazyAdam(Adam):
    """Adam that updates only the rows of an embedding that have a gradient."""

    name: str = variant_name("lazy_adam")
    skips_rows: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Adagrad(_Adaptive):
    """Adagrad.

    Attributes:
      initial_accumulator: initial value of the sums of squares; TensorFlow's default.
    """

    name: str = variant_name("adagrad")
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

    name: str = variant_name("rmsprop")
    epsilon: float = 1e-7
    rho: float = 0.9


@dataclasses.dataclass(frozen=True)
class Adadelta(RMSprop):
    """Adadelta (Zeiler 2012), whose paper has rho = 0.95."""

    name: str = variant_name("adadelta")
    rho: float = 0.95


@dataclasses.dataclass(frozen=True)
class AdamW(_Moments):
    """AdamW: Adam with a weight decay added to its direction."""

    name: str = variant_name("adamw")
    later: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Lamb(AdamW):
    """LAMB: AdamW's step, scaled to the weight's norm."""

    name: str = variant_name("lamb")
    epsilon: float = 1e-6


@dataclasses.dataclass(frozen=True)
class OwnRule(Lars, Adam, Adadelta, Adagrad):
    """A rule of your own, MODULE:FUNCTION, which may read every field."""

    name: str = ""
    momentum: float = 0.9
    nesterov: bool = False
    epsilon: float = 0.0
    rho: float = 0.9
    later: ClassVar[bool] = False
    is_plugin: ClassVar[bool] = True

    def check(self) -> None:
        """Accepts any value: the rule alone knows what it reads."""
