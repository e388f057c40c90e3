"""Optimizers and schedules of the presets' sources, in numpy, step by step as their code computes them.

Constants come from the logs and launch flags (tests/pinned/published_headers.json), not from the presets. G6, G7 are
mlcommons/training_results_v0.6 and v0.7, Google/benchmarks/BENCHMARK/implementations/; NV is G7's NVIDIA/benchmarks/
BENCHMARK/implementations/; the numbers are lines.
"""

import dataclasses
import functools
import importlib
import json
import math
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

PUBLISHED = json.loads((pathlib.Path(__file__).parent / "pinned" / "published_headers.json").read_text())
Slots = dict[str, np.ndarray]
# (weight, gradient, slots, rate, kind, step) -> weight; the kind is "kernel", "bias" (the output layer's) or "norm".
Update = Callable[[np.ndarray, np.ndarray, Slots, float, str, int], np.ndarray]
Rate = Callable[[int], float]


@dataclasses.dataclass
class Source:
    """What a row's code does: `rate` of step 0, 1, ..., `bias_rate` where biases have their own, and the update."""

    code: str
    rate: Rate
    update: Update
    bias_rate: Rate | None = None
    clip: Callable[[float], float] = lambda norm: 1.0
    # Of losses [examples of a replica] with weights (tokens, regions): their sum, the mean over all replicas' weights,
    # or the mean of the replicas' means.
    combined: str = "mean"
    replica_clip: Callable[[float], float] = lambda norm: 1.0
    exchange: str = "full"  # Or "bf16": gradients are sent and added in bfloat16.

    def exchanged(self, losses: list["np.ndarray"], weights: list["np.ndarray"]) -> "np.ndarray":
        """The gradient that the optimizer sees.

        Args:
          losses: gradient of each example's loss, [examples, parameters] of each replica.
          weights: [examples] of each replica; an example's loss is a sum over so many tokens or regions.
        """
        everything = sum(w.sum() for w in weights)
        divisors = {
            "sum": [1.0 for _ in weights],
            "mean": [everything for _ in weights],
            "means": [len(weights) * w.sum() for w in weights],
        }[self.combined]
        total = None
        for slopes, divisor in zip(losses, divisors, strict=True):
            gradient = slopes.sum(0) / divisor
            gradient = gradient * self.replica_clip(np.sqrt((gradient**2).sum()))
            if self.exchange == "bf16":
                gradient = gradient.astype(tf.bfloat16.as_numpy_dtype)
            total = gradient if total is None else total + gradient
        total = total.astype(np.float64)
        return total * self.clip(np.sqrt((total**2).sum()))


# Preset -> {group: (bound, why its trajectory differs from its source's by more)}.
DIFFERENT = {
    "resnet/v100-8": {
        "weights": (1e-5, "Keras's epsilon of 1e-7 stands in for 0; the rules and the log have 0")
    },
    "resnet/dgx-1": {"biases": (0.6, "the classifier's bias decays there; the reference's does not")},
}
DIFFERENT["resnet/tpu-v3-32-v0.7"] = DIFFERENT["resnet/v100-8"]
DIFFERENT["resnet/dgx-2h-32"] = DIFFERENT["resnet/dgx-1"]

_KERNELS, _ALL = ("kernel",), ("kernel", "bias", "norm")
# NV resnet mxnet/common/fit.py 412-417, set_wd_mult: the classifier's bias decays.
_OUTPUT_BIAS = ("kernel", "bias")

# -- updates: slots start empty, at 0 ---------------------------------------------------------------------------------


def torch_sgd(wd: float, m: float = 0.9, decay: tuple[str, ...] = _KERNELS) -> Update:
    """PyTorch's and apex's SGD, and TensorFlow 1's MomentumOptimizer: the velocity does not contain the rate."""

    def update(w: np.ndarray, g: np.ndarray, s: Slots, rate: float, kind: str, step: int) -> np.ndarray:
        s["v"] = m * s.get("v", 0) + g + (wd * w if kind in decay else 0)
        return w - rate * s["v"]

    return update


def mxnet_sgd(wd: float, m: float, decay: tuple[str, ...]) -> Update:
    """MXNet's sgd_mom_update: the velocity contains the rate."""

    def update(w: np.ndarray, g: np.ndarray, s: Slots, rate: float, kind: str, step: int) -> np.ndarray:
        s["v"] = m * s.get("v", 0) - rate * (g + (wd * w if kind in decay else 0))
        return w + s["v"]

    return update


def _trust(w: np.ndarray, g: np.ndarray, wd: float, epsilon: float) -> float:
    w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
    return 0.001 * w_norm / (g_norm + wd * w_norm + epsilon) if w_norm > 0 and g_norm > 0 else 1.0


def mxnet_lars(wd: float, m: float) -> Update:
    """NV resnet mxnet/common/fit.py 429-533: SGDwFASTLARS, whose momentum is multiplied by cur_lr / last_lr."""

    def update(w: np.ndarray, g: np.ndarray, s: Slots, rate: float, kind: str, step: int) -> np.ndarray:
        corrected = m * (rate / s.get("last_lr", rate))
        s["last_lr"] = rate
        lr = rate * _trust(w, g, wd, 0.0) if kind == "kernel" else rate
        s["v"] = corrected * s.get("v", 0) - lr * (g + (wd * w if kind in _OUTPUT_BIAS else 0))
        return w + s["v"]

    return update


def tf_lars(wd: float, m: float, epsilon: float = 0.0, l2: float = 0.0, scaled: bool = False) -> Update:
    """G7 resnet TF2 lars_optimizer.py 103-146, contrib's LARSOptimizer, Flax's LARS; `scaled` is G6's TensorFlow.

    `l2` is the coefficient in the loss (G6 resnet_main.py), of all but batch norm: it is part of the raw gradient.
    """

    def update(w: np.ndarray, g: np.ndarray, s: Slots, rate: float, kind: str, step: int) -> np.ndarray:
        g = g + (l2 * w if kind != "norm" else 0)
        trust = _trust(w, g, wd, epsilon) if kind == "kernel" else 1.0
        g = g + (wd * w if kind == "kernel" else 0)
        if scaled:
            s["v"] = m * s.get("v", 0) + g
            return w - rate * trust * s["v"]
        s["v"] = m * s.get("v", 0) - rate * trust * g
        return w + s["v"]

    return update


def adam(beta_1: float, beta_2: float, epsilon: float, flax: bool = False) -> Update:
    """TensorFlow's Adam and apex/contrib's FusedAdam (fused_adam_cuda_kernel.cu 38-60, 183-186); or Flax's."""

    def update(w: np.ndarray, g: np.ndarray, s: Slots, rate: float, kind: str, step: int) -> np.ndarray:
        s["m"] = beta_1 * s.get("m", 0) + (1 - beta_1) * g
        s["v"] = beta_2 * s.get("v", 0) + (1 - beta_2) * g * g
        first, second = 1 - beta_1 ** (step + 1), 1 - beta_2 ** (step + 1)
        if flax:
            return w - rate * (s["m"] / first) / (np.sqrt(s["v"] / second) + epsilon)
        return w - rate * math.sqrt(second) / first * s["m"] / (np.sqrt(s["v"]) + epsilon)

    return update


# -- schedules --------------------------------------------------------------------------------------------------------


def _drops(peak: float, warmup: float, first: float, second: float, start: float = 0.0) -> Rate:
    def rate(step: int) -> float:
        if step < warmup:
            return start + (peak - start) * step / warmup
        return peak * (0.01 if step >= second else 0.1 if step >= first else 1.0)

    return rate


def _poly(peak: float, warmup: float, decay_start: float, decay: float, at: int = 0) -> Rate:
    def rate(step: int) -> float:
        step += at
        if step <= warmup:
            return peak * step / warmup
        return 1e-4 + (peak - 1e-4) * (1 - min(step - decay_start, decay) / decay) ** 2

    return rate


def ssd(name: str, v: dict, flags: dict) -> Source:
    if name.startswith("tpu"):
        # G6, G7 ssd_model.py: update_learning_rate_schedule_parameters, learning_rate_schedule, line 536 and the
        # defaults of the drops; ssd_constants.py.
        old, batch = "train_samples" not in v, v["global_batch_size"]
        epoch = (120000 if old else 118287) / batch
        first = float(flags.get("hparams.first_lr_drop_epoch", 42.6 if old else 40))
        second = float(flags.get("hparams.second_lr_drop_epoch", 53.3 if old else 50))
        warmup = int(float(flags["hparams.lr_warmup_epoch"]) * epoch)
        peak = v["opt_base_learning_rate"] * batch / 32
        rate = _drops(peak, warmup, int(first * epoch), int(second * epoch))
        return Source("TensorFlow", rate, torch_sgd(v["opt_weight_decay"], decay=_ALL))
    peak, warmup, wd = (
        v[f"opt_{k}"] for k in ("base_learning_rate", "learning_rate_warmup_steps", "weight_decay")
    )
    mxnet = name == "dgx-2h-64"
    epochs = (60, 75) if mxnet else (44, 55)
    # Epoch e begins after the first e * 117,266 images, in whole batches (the logs' current_iter_num).
    first, second = (math.ceil(e * 117266 / v["global_batch_size"]) for e in epochs)
    plain = _drops(peak, warmup, first, second)
    if mxnet:  # NV ssd/mxnet trainer.py, lr_scheduler.py 49-62, model.py 154-173: iterations count from 1.
        rate = lambda step: plain(step + 1) if step + 1 < warmup else plain(max(step, int(warmup)))  # noqa: E731
        return Source("MXNet", rate, mxnet_sgd(wd, 0.9, _ALL))
    # NV ssd/pytorch train.py 111-120, 183-186, 340-344.
    return Source("PyTorch", plain, torch_sgd(wd, decay=_ALL))


def maskrcnn(name: str, v: dict, flags: dict) -> Source:
    peak, warmup = v["opt_base_learning_rate"], v["opt_learning_rate_warmup_steps"]
    drops = v.get("opt_learning_rate_decay_steps") or [
        flags[f"hparams.{n}_lr_drop_step"] for n in ("first", "second")
    ]
    first, second = (int(step) for step in drops)
    if name.startswith(
        "tpu"
    ):  # lr_policy.py; mask_rcnn_model.py 46-58, 117, 313-318: gradients of biases are doubled.
        rate = _drops(peak, warmup, first, second)
        # losses.py: means over a core's own regions, and CrossShardOptimizer's mean of those.
        return Source(
            "TensorFlow", rate, torch_sgd(1e-4), bias_rate=lambda step: 2 * rate(step), combined="means"
        )
    # NV pytorch/maskrcnn_benchmark/solver/build.py, lr_scheduler.py 41-69: mlperf_linear.
    factor = v["opt_learning_rate_warmup_factor"]

    def group(base: float) -> Rate:
        def rate(step: int) -> float:
            delta = (warmup - step) * factor if step < warmup else 0.0
            return (base - delta) * 0.1 ** ((step >= first) + (step >= second))

        return rate

    # Each GPU's losses are means of its own regions (loss.py), and apex averages the GPUs' gradients.
    return Source("PyTorch", group(peak), torch_sgd(1e-4), bias_rate=group(2 * peak), combined="means")


def gnmt(name: str, v: dict, flags: dict) -> Source:
    peak, warmup = v["opt_base_learning_rate"], v["opt_learning_rate_warmup_steps"]
    start, every = v["opt_learning_rate_remain_steps"], v["opt_learning_rate_decay_interval"]
    if name.startswith("tpu"):  # nmt/model.py 568-629; TensorFlow's defaults of Adam; clip_by_global_norm.

        def rate(step: int) -> float:
            lr = peak * math.exp(math.log(0.01) / warmup) ** (warmup - step) if step < warmup else peak
            return lr * 0.5 ** min(max(step - start, 0) // every, 4)

        # model.py 828 (G6), 773 (G7): reduce_sum(loss); both clip before the exchange, and add the replicas' gradients:
        # G6 calls tf.gradients, so CrossShardOptimizer divides by nothing; G7 466-484 sums in bfloat16.
        old = "opt_adam_beta_1" not in v and "train_samples" not in v
        return Source(
            "TensorFlow",
            rate,
            adam(0.9, 0.999, 1e-8),
            combined="sum",
            replica_clip=lambda norm: 5 / max(norm, 5),
            exchange="full" if old else "bf16",
        )

    # NV pytorch/seq2seq/train/lr_scheduler.py 89-112; fp_optimizers.py 165-186: the scheduler steps before the
    # optimizer; trainer.py 11: apex.contrib's FusedAdam.
    def counted(step: int) -> float:
        step += 1
        if step <= warmup:
            return peak * math.exp(math.log(0.01) / warmup) ** (warmup - step)
        return peak * 0.5 ** min((step - start) // every + 1, 4) if step >= start else peak

    return Source("PyTorch", counted, adam(0.9, 0.999, 1e-8), clip=lambda norm: min(1, 5 / (norm + 1e-6)))


def transformer(name: str, v: dict, flags: dict) -> Source:
    peak, warmup = v["opt_base_learning_rate"], v["opt_learning_rate_warmup_steps"]
    betas = (v["opt_adam_beta_1"], v["opt_adam_beta_2"], v["opt_adam_epsilon"])
    if not name.startswith(
        "tpu"
    ):  # NV pytorch/fairseq/optim/lr_scheduler/inverse_square_root_schedule.py 83-90.
        nv = lambda step: step * peak / warmup if step < warmup else peak * math.sqrt(warmup / step)  # noqa: E731
        return Source("PyTorch", nv, adam(*betas))
    # G6 transformer/utils/learning_rate.py 17-46, G7 lingvo/core/schedule.py 325-332, JAX train.py 232-256.
    rate = lambda step: peak * min(1, step / warmup) / math.sqrt(max(step, warmup)) / math.sqrt(1024)  # noqa: E731
    jax = name.endswith("jax")
    # G6 utils/optimize.py 34 and 112, G7 mlperf.py 179, JAX train.py 413-416: means of the cores' means, in bfloat16
    # but in v0.6 beyond 32 cores.
    bf16 = name == "tpu-v3-32" or "train_samples" in v
    return Source(
        "JAX" if jax else "TensorFlow",
        rate,
        adam(*betas, flax=jax),
        combined="means",
        exchange="bf16" if bf16 else "full",
    )


def resnet(name: str, v: dict, flags: dict) -> Source:
    n, batch = 1281167, v["global_batch_size"]
    key = next((k for k in ("lars_opt", "sgd_opt", "opt") if f"{k}_base_learning_rate" in v), "")
    peak, wd = v[f"{key}_base_learning_rate"], v.get("lars_opt_weight_decay", v.get("sgd_opt_weight_decay"))
    warm = v.get("lars_opt_learning_rate_warmup_epochs", v.get("opt_learning_rate_warmup_epochs"))
    if name.startswith(
        "dgx"
    ):  # NV mxnet/common/fit.py 636-712: PolySchedule; an update comes before the clock.
        gpus = {"dgx-1": 8, "dgx-2h": 16, "dgx-2h-32": 512}[name]
        epoch = math.ceil(int(n / gpus) / (batch // gpus))
        total = epoch * v.get(
            "lars_opt_learning_rate_decay_steps", v.get("sgd_opt_learning_rate_decay_steps")
        )
        rate = _poly(peak, warm * epoch, warm * epoch, total - warm * epoch, at=2)
        m = v.get("lars_opt_momentum", v.get("sgd_opt_momentum"))
        return Source(
            "MXNet", rate, mxnet_sgd(wd, m, _OUTPUT_BIAS) if v["opt_name"] == "sgd" else mxnet_lars(wd, m)
        )
    decay = v["lars_opt_learning_rate_decay_steps"]
    if name in ("v100-8", "tpu-v3-32-v0.7"):  # TF2 lars_util.py 96-158, over whole steps per epoch.
        epoch = n // batch
        rate = _poly(peak, warm * epoch, warm * epoch, decay)
        return Source("Keras", rate, tf_lars(wd, v["lars_opt_momentum"], 1e-7))
    if name.endswith("jax"):  # JAX train.py 267-295, 475-479.
        epoch = math.ceil(n / batch * 4) / 4
        return Source(
            "JAX", _poly(peak, warm * epoch, warm * epoch, decay), tf_lars(wd, v["lars_opt_momentum"])
        )
    # G6, G7 lars_util.py: poly_rate_schedule.
    rate = _poly(peak, warm * n / batch, warm * n // batch, decay)
    old = "lars_opt_momentum" not in v
    update = tf_lars(wd, v.get("lars_opt_momentum", 0.9), v["lars_epsilon"], wd if old else 0.0, scaled=old)
    return Source("TensorFlow", rate, update)


def unscaled(peak: float, warm: int, steps: int, m: float) -> Source:
    """ "Scale MLPerf-0.6 Models on Google TPU-v3 Pods", Table 1, rows 2 and 3: G6's code with figure 6's momentum."""
    n, batch = 1281167, 32768
    rate = _poly(peak, warm * n / batch, warm * n // batch, steps - warm * n // batch + 1)
    return Source("TensorFlow", rate, tf_lars(1e-4, m, 1e-5, 1e-4))


def tsm(batch: int, epochs: int = 100) -> Source:
    """ "Training Kinetics in 15 Minutes", 4.1: 0.00125 per 8 clips, cosine after 5 epochs' warmup; PyTorch's SGD."""
    epoch, peak = 240_436 / batch, 0.00125 * batch / 8

    def rate(step: int) -> float:
        warmup = 5 * epoch
        if step <= warmup:
            return peak * step / warmup
        start = math.floor(warmup)
        done = min((step - start) / (math.ceil(epochs * epoch) - start + 1), 1)
        return peak * (1 + math.cos(math.pi * done)) / 2

    return Source("PyTorch", rate, torch_sgd(1e-4))


def legw(batch: int, k: int) -> Source:
    """ "Large-Batch Training for LSTM and Beyond", table 1: LARS, 2^2.5 sqrt(k), k x 0.3125 epochs' warmup, 90 epochs.

    The decay is (1 - i/I)^2 over the whole run (section 3.2). It has no weight decay in its text: G6's stands in.
    """
    epoch, peak = 1281167 / batch, 2**2.5 * math.sqrt(k)
    warmup, total = 0.3125 * k * epoch, math.ceil(90 * epoch)
    rate = lambda step: peak * step / warmup if step <= warmup else peak * (1 - step / total) ** 2  # noqa: E731
    return Source("TensorFlow", rate, tf_lars(2e-4, 0.9))


@functools.cache
def rows() -> dict[str, Source]:
    """{BENCHMARK/PRESET: what its source's code does} of all rows that a source has published."""
    by_name = {}
    for name, row in PUBLISHED.items():
        benchmark, _, system = name.partition("/")
        by_name[name] = globals()[benchmark](system, row["values"], row.get("flags") or {})
    for name, config in importlib.import_module("tsm_kinetics.presets").PRESETS.items():
        if name.startswith("summit"):
            by_name[f"tsm_kinetics/{name}"] = tsm(config.global_batch_size)
    for i in range(6):
        by_name[f"resnet/legw-{1024 * 2**i}"] = legw(1024 * 2**i, 2**i)
    by_name["resnet/tpu-v3-2048-unscaled"] = unscaled(31.2, 25, 2983, 0.9)
    by_name["resnet/tpu-v3-2048-unscaled-tuned"] = unscaled(29.0, 18, 2512, 0.929)
    return by_name
