"""Trains the toy task in numpy, in float64 and on one machine: the naive form of what the core does in many ways."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from common.config.optimizer import Optimizer
from tests.common.train import toy

# The defaults of SyncBatchNorm.
MOMENTUM, EPSILON = 0.9, 1e-5
# The weights of `toy.Task` in the order of their creation; only kernels decay and adapt.
KERNELS = (True, False, False, True, False)


@dataclasses.dataclass
class Training:
    """What a run shows: the loss of each step, the value of each evaluation, and the weights at the end."""

    losses: list[float] = dataclasses.field(default_factory=list)
    values: list[float] = dataclasses.field(default_factory=list)
    weights: list[np.ndarray] = dataclasses.field(default_factory=list)


class Network:
    """The network of `toy.Task`: a matrix, batch norm over groups of `span` examples, tanh, a matrix with a bias."""

    def __init__(self, weights: Sequence[np.ndarray], span: int):
        self.weights, self._span = [w.astype(np.float64) for w in weights], span
        self._moments: list[np.ndarray] = []  # Moving mean and variance, [groups, 16] each.

    def gradients(self, x: np.ndarray, labels: np.ndarray, above: np.ndarray) -> tuple[float, list, list]:
        """Returns the sum of the losses times `above`, its gradients, and the moments of batch norm.

        Args:
          x, labels: the examples, [n, 8] and [n].
          above: factors of the examples' losses, [n]; 1/n for a mean.
        """
        first, gamma, beta, last, bias = self.weights
        wide = x @ first
        groups = wide.reshape(-1, self._span or len(x), wide.shape[-1])
        mean, variance = groups.mean(1, keepdims=True), groups.var(1, keepdims=True)
        root = np.sqrt(variance + EPSILON)
        normal = (groups - mean) / root
        y = np.tanh(normal * gamma + beta).reshape(wide.shape)
        powers = np.exp(y @ last + bias)
        shares = powers / powers.sum(-1, keepdims=True)
        loss = -(np.log(shares[np.arange(len(x)), labels]) * above).sum()
        d_logits = (shares - np.eye(toy.CLASSES)[labels]) * above[:, None]
        d_scaled = ((d_logits @ last.T) * (1 - y * y)).reshape(groups.shape)
        d_normal = d_scaled * gamma
        # Every example of a group moves the group's mean and variance.
        shared = d_normal.mean(1, keepdims=True) + normal * (d_normal * normal).mean(1, keepdims=True)
        d_wide = ((d_normal - shared) / root).reshape(wide.shape)
        d_gamma, d_beta = (d_scaled * normal).sum((0, 1)), d_scaled.sum((0, 1))
        gradients = [x.T @ d_wide, d_gamma, d_beta, y.T @ d_logits, d_logits.sum(0)]
        return loss, gradients, [mean[:, 0], variance[:, 0]]

    def average(self, moments: list[np.ndarray]) -> None:
        """Moves the moving averages of batch norm, which start from a mean of 0 and a variance of 1."""
        before = self._moments or [np.zeros_like(moments[0]), np.ones_like(moments[1])]
        self._moments = [MOMENTUM * b + (1 - MOMENTUM) * m for b, m in zip(before, moments, strict=True)]

    def accuracy(self, x: np.ndarray, labels: np.ndarray) -> float:
        """Returns the share of examples that the network gets right with the merged moments of all groups."""
        first, gamma, beta, last, bias = self.weights
        means, variances = self._moments
        mean, variance = means.mean(0), variances.mean(0) + means.var(0)
        y = np.tanh((x @ first - mean) / np.sqrt(variance + EPSILON) * gamma + beta)
        return float(np.mean(np.argmax(y @ last + bias, -1) == labels))


class Update:
    """SGD or LARS with momentum, weight by weight."""

    def __init__(self, optimizer: Optimizer):
        self._optimizer = optimizer
        self._momenta: list[np.ndarray | float] = [0.0] * len(KERNELS)

    def apply(self, network: Network, gradients: Sequence[np.ndarray]) -> None:
        o = self._optimizer
        for i, (w, g) in enumerate(zip(network.weights, clipped(gradients, o.clip_norm), strict=True)):
            rate = o.base_learning_rate
            if KERNELS[i]:
                if o.name == "lars":
                    size = np.linalg.norm(w)
                    rate *= o.eta * size / (np.linalg.norm(g) + o.weight_decay * size + o.epsilon)
                g = g + o.weight_decay * w
            self._momenta[i] = o.momentum * self._momenta[i] + rate * g
            network.weights[i] = w - self._momenta[i]


def clipped(gradients: Sequence[np.ndarray], limit: float) -> list[np.ndarray]:
    """Returns the gradients, scaled together to the norm `limit` if theirs is larger; 0 clips nothing."""
    norm = np.sqrt(sum((g * g).sum() for g in gradients))
    return [g * (limit / norm if limit and norm > limit else 1.0) for g in gradients]


def train(config: toy.Config, weights: Sequence[np.ndarray], replicas: int = 1) -> Training:
    """Trains epoch by epoch, with an evaluation after each.

    Args:
      config: its batch, epochs, span and optimizer count.
      weights: where to start.
      replicas: the parts of a batch whose own gradients are clipped (`clip_replica_norm`) before their mean is taken;
        under `sums_examples` the gradients of their examples' sums, which are added.
    """
    task = toy.Task(config)
    examples, held_out = task.examples(0, 64, 0), task.examples(0, 37, 1)
    network, update, actual = Network(weights, config.batch_norm_span), Update(config.optimizer), Training()
    size = config.global_batch_size
    per_epoch = config.num_train_examples // size
    for step in range(int(config.train_epochs) * per_epoch):
        first = step % per_epoch * size
        x, labels = examples["x"][first : first + size], examples["label"][first : first + size]
        losses, gradients = [], []
        for replica in range(replicas):
            mask = np.arange(size) * replicas // size == replica
            loss, found_gradients, moments = network.gradients(x, labels, mask * replicas / size)
            losses.append(loss)
            if config.optimizer.sums_examples:
                found_gradients = [g * size / replicas for g in found_gradients]
            gradients.append(clipped(found_gradients, config.optimizer.clip_replica_norm))
        network.average(moments)
        divisor = 1 if config.optimizer.sums_examples else replicas
        update.apply(network, [sum(parts) / divisor for parts in zip(*gradients, strict=True)])
        actual.losses.append(sum(losses) / replicas)
        if (step + 1) % per_epoch == 0:
            actual.values.append(network.accuracy(held_out["x"], held_out["label"]))
    actual.weights = network.weights
    return actual
