"""Interface of the backends: collectives, placement, per-replica variables, input shards, what XLA compiles."""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed import heartbeat
from common.distributed.tensorflow_private import record
from common.errors import UserError

Groups = Sequence[Sequence[int]]
# A variable's first value, or a function that returns it.
Initial = tf.Tensor | Callable[[], tf.Tensor]


class UnsupportedError(UserError):
    """A backend cannot do what was asked; the message names the backend and what to use instead."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """Part `index` of `count` equal parts of the input: one process's part."""

    index: int = 0
    count: int = 1

    def batches_per_step(self, examples: int, batch_size: int) -> int:
        """Batches of `batch_size` in this part of a step of `examples`: one for each replica that the part feeds."""
        return examples // self.count // batch_size


class Group(Protocol):
    """The exchanges of one group of replicas, without gradients, for the collectives of `Replicas`."""

    def sum(self, x: tf.Tensor) -> tf.Tensor: ...

    def gather(self, x: tf.Tensor, axis: int) -> tf.Tensor: ...

    def scatter(self, x: tf.Tensor, axis: int) -> tf.Tensor: ...

    def exchange(self, x: tf.Tensor, axis: int) -> tf.Tensor: ...

    def shift(self, x: tf.Tensor, distance: int) -> tf.Tensor: ...


class Replicas(abc.ABC):
    """Copies of a model that train together. Every replica calls the collectives, inside `run`.

    All collectives are differentiable. `groups` is a list of lists of replica numbers that partitions the replicas
    into groups of equal size. None is one group of all replicas.

    Attributes:
      name: the backend's name.
      num_replicas: replicas over all processes.
      updates_in_place: whether TensorFlow's kernels make the whole update (common/optim/fused_kernels.py) instead of
        `assign`.
      compiles_between: whether a compiled program may come between two exchanges inside `run`.
      loops_hold_collectives: whether control flow within `run` may contain collectives.
      compiles_collectives: whether a compiled function may contain them.
      drives_from_host: whether each `run` is a program that Python starts, so that the training loop runs in Python
        (common/train/host_block.py).
      narrow: whether steps count and draw random numbers in 32-bit words, because the device emulates 64-bit integers.
      shards_weights: whether `sharded_variable` works.
      has_random_words: whether a program can use its device's generator, `random_words`.
      platform: the kind of the devices, in their compiler's words ("NVIDIA H200"), if the backend knows it.
      compute_capability: of NVIDIA GPUs; infinity if the backend does not know it.
      process_index, num_processes: this process's index and the run's number of processes; process 0 writes the log.
    """

    name: str = ""
    num_replicas: int = 1
    updates_in_place: bool = False
    compiles_between: bool = False
    loops_hold_collectives: bool = False
    compiles_collectives: bool = False
    drives_from_host: bool = False
    narrow: bool = False
    shards_weights: bool = False
    has_random_words: bool = False
    platform: str = ""
    compute_capability: float = math.inf
    process_index: int = 0
    num_processes: int = 1

    @property
    def main(self) -> bool:
        """Whether this process writes the log, the checkpoints and the output for people."""
        return self.process_index == 0

    @property
    def counter(self) -> tf.DType:
        """Dtype of step counters and draw counters."""
        return tf.int32 if self.narrow else tf.int64

    def scope(self, in_parts: bool = False) -> AbstractContextManager[Any]:
        """Context in which variables are created.

        `in_parts`: the function for an initial value always returns the same, whenever it is called; a backend may
        then make values one at a time, so that the state never stands whole on the host.
        """
        return contextlib.nullcontext()

    def untouched(self, variable: tf.Variable) -> bool:
        """Whether `renew` can give back the present value of a variable, because nothing has read or written it."""
        return False

    def renew(self, variables: Sequence[tf.Variable]) -> None:
        """Outside `run`: sets variables that were `untouched` before to their initial values, one at a time."""

    def model_input(self, shape: Sequence[int], batch_size: int, dtype: tf.DType) -> Any:
        """tf_keras.Input of [batch_size, *shape]; `batch_size` is one replica's micro-batch."""
        return tf_keras.Input(shape, batch_size=batch_size, dtype=dtype)

    @abc.abstractmethod
    def replica_id(self) -> tf.Tensor | int:
        """This replica's number, inside `run`."""

    # The next three are those of a process with one replica.

    def run(self, function: Callable, args: tuple = ()) -> Any:
        """Calls `function` on every replica with that replica's part of each of `args`."""
        return function(*args)

    def local_results(self, value: Any) -> list[Any]:
        """Values of this process's replicas, from a result of `run` or from a per-replica variable."""
        return [value]

    def per_replica_variable(self, initial: Initial, name: str, **kind: Any) -> tf.Variable:
        """A variable with a separate copy on every replica: the copies differ; `run` writes and reads them.

        `kind` is its shape and dtype, if `initial` is a function.
        """
        return tf.Variable(initial, trainable=False, name=name, **kind)

    def sharded_variable(
        self, parts: Callable[[], np.ndarray], size: int, dtype: tf.DType, name: str
    ) -> tf.Variable:
        """A trainable variable [size]: `parts()[i]` on replica i; raises UnsupportedError on most backends."""
        raise UnsupportedError(f"the backend {self.name} cannot shard weights; use --config.replicas=pjrt")

    def assign(self, variables: list[tf.Variable], values: list[tf.Tensor]) -> None:
        """Inside `run`: every replica writes its value, equal on all, into its copy of each variable."""
        for variable, value in zip(variables, values):
            variable.assign(value)

    def cut(self, x: tf.Tensor, begin: Sequence[tf.Tensor | int], size: Sequence[int]) -> tf.Tensor:
        """Inside `run`: tf.slice of `x`; `begin` may depend on the replica's number; the slice must lie within `x`."""
        return tf.slice(x, tf.stack(begin), size)

    def place(self, x: tf.Tensor, begin: Sequence[tf.Tensor | int], shape: Sequence[int]) -> tf.Tensor:
        """Inside `run`: zeros of `shape` with `x` placed at `begin`; the counterpart of `cut`. Has no gradient."""
        before = tf.stack(begin)
        after = tf.constant(shape, before.dtype) - before - tf.constant(list(x.shape), before.dtype)
        return tf.ensure_shape(tf.pad(tf.stop_gradient(x), tf.stack([before, after], 1)), shape)

    def random_words(self, state: Sequence[tf.Tensor | int], shape: Sequence[int]) -> tf.Tensor:
        """Inside `run`: uint32 words of `shape` from the device's generator, seeded with the four words `state`.

        Raises UnsupportedError unless `has_random_words`.
        """
        raise UnsupportedError(
            f"the backend {self.name} cannot ask a device's generator; use --config.replicas=pjrt"
        )

    def group(self, groups: Groups | None) -> Group:
        """Inside `run`: the exchanges of this replica's group, for the five collectives below.

        Raises UserError if `groups` do not partition the replicas into equal parts.
        """
        raise NotImplementedError

    def all_reduce(self, x: tf.Tensor, groups: Groups | None = None) -> tf.Tensor:
        """Sum over the group; same shape."""
        group = self.group(groups)
        return linear(x, group.sum, group.sum)

    def all_gather(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        """Concatenation over the group along `axis`, in the group's order."""
        group = self.group(groups)
        return linear(x, lambda x: group.gather(x, axis), lambda x: group.scatter(x, axis))

    def reduce_scatter(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        """This replica's part, along `axis`, of the sum over the group."""
        group = self.group(groups)
        return linear(x, lambda x: group.scatter(x, axis), lambda x: group.gather(x, axis))

    def all_to_all(self, x: tf.Tensor, axis: int = 0, groups: Groups | None = None) -> tf.Tensor:
        """Sends part i of every replica's `x` to the group's i-th replica; concatenates the received parts in order."""
        group = self.group(groups)
        return linear(x, lambda x: group.exchange(x, axis), lambda x: group.exchange(x, axis))

    def shift(self, x: tf.Tensor, distance: int, groups: Groups | None = None) -> tf.Tensor:
        """Returns the `x` of the replica `distance` places earlier in the group; zeros if there is none."""
        group = self.group(groups)
        return linear(x, lambda x: group.shift(x, distance), lambda x: group.shift(x, -distance))

    def sum_bucket(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sum of each tensor over all replicas, in one exchange (a flat sum in full precision)."""
        return unflatten(self.all_reduce(flatten(tensors)), tensors)

    @abc.abstractmethod
    def sum(self, value: Any) -> Any:
        """Outside `run`: adds up the replicas' results (any nest of tensors) over all processes."""

    @abc.abstractmethod
    def gather(self, value: Any) -> Any:
        """Outside `run`: concatenates the replicas' results along axis 0, over all processes."""

    @abc.abstractmethod
    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Any:
        """An iterable of per-replica batches. `make(shard)` yields the batches of this process's replicas in turn."""

    def compile(self, function: Callable, enabled: bool) -> Callable:
        """Returns `function` compiled by XLA if the backend can and `enabled`, else unchanged."""
        return tf.function(function, jit_compile=True, autograph=False) if enabled else function

    def refresh(self) -> None:
        """Outside `run`: copies the devices' values to TensorFlow's variables, for code outside `run`."""
        return

    def close(self) -> None:
        """Ends the exchanges: every process calls it at the end of a run and exchanges nothing afterwards."""
        return

    def peer_lost(self, error: BaseException) -> bool:
        """Whether `error` means that another process ended or no longer answers."""
        lost = tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError
        return self.num_processes > 1 and isinstance(error, lost)

    def all_reduce_max(self, value: int) -> int:
        """Outside `run`, called by every process: the largest value that any process gave.

        The launcher sees which processes wait here for the others (common/distributed/heartbeat.py).
        """
        with heartbeat.waits_for_others():
            return self._all_reduce_max(value)

    def check_count(self, count: int, why: str) -> None:
        """Raises UserError, in every process, if one was asked for another number of replicas than there are."""
        wrong = count != self.num_replicas
        if not self.all_reduce_max(int(wrong)):
            return
        why = why if wrong else "another process has another number; give every process the same"
        raise UserError(f"config.num_replicas={count}: {why}")

    def _all_reduce_max(self, value: int) -> int:
        return value

    def all_values(self, variable: tf.Variable) -> np.ndarray:
        """Outside `run`, called by every process: a per-replica variable's values, [num_replicas, *shape]."""
        return np.stack([x.numpy() for x in self.local_results(variable)])


def linear(
    x: tf.Tensor, forward: Callable[[tf.Tensor], tf.Tensor], backward: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Returns forward(x), for a linear map whose gradient is its transpose `backward`.

    tf.custom_gradient would search the whole graph behind the result for variables; for a large network that takes
    minutes.
    """
    x = tf.convert_to_tensor(x)
    with record.stop_recording():
        y = forward(x)
    record.record_operation("Collective", [y], [x], lambda upstream: [linear(upstream, backward, forward)])
    return y


def all_groups(groups: Groups | None, num_replicas: int) -> list[list[int]]:
    """Returns `groups` as lists; one of all replicas for None."""
    return [[int(r) for r in group] for group in groups] if groups is not None else [[*range(num_replicas)]]


def building() -> bool:
    """Whether a network is being built in a strategy's scope: then only shapes matter, and collectives cannot run."""
    return tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context()


def contiguous_groups(num_replicas: int, size: int) -> list[list[int]]:
    """Returns [[0..size-1], [size..2*size-1], ...].

    Raises UserError if `size` does not divide the number of replicas.
    """
    if size < 1 or num_replicas % size:
        raise UserError(f"groups of {size} replicas do not divide {num_replicas} replicas; use a divisor")
    return [list(range(i, i + size)) for i in range(0, num_replicas, size)]


def placement(groups: Groups, num_replicas: int) -> Iterator[tuple[int, int]]:
    """Yields (group number, position in it) for replica 0, 1, 2, ...

    Raises UserError if the groups do not partition the replicas into equal parts.
    """
    where = {r: (g, p) for g, group in enumerate(groups) for p, r in enumerate(group)}
    if sorted(where) != list(range(num_replicas)) or len({len(g) for g in groups}) != 1:
        problem = f"do not partition {num_replicas} replicas into equal parts"
        raise UserError(f"groups {list(map(list, groups))} {problem}")
    for replica in range(num_replicas):
        yield where[replica]


def flatten(tensors: Sequence[tf.Tensor], multiple: int = 1) -> tf.Tensor:
    """Returns one vector of all tensors' elements, zero-padded to a multiple of `multiple`; all share a dtype."""
    flat = [tf.reshape(x, [-1]) for x in tensors]
    padding = -sum(x.shape.num_elements() for x in tensors) % multiple
    if padding:
        flat.append(tf.zeros([padding], flat[0].dtype))
    return tf.concat(flat, 0) if len(flat) > 1 else flat[0]


def unflatten(flat: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Splits the vector of `flatten` into its tensors, in the shapes of `like`."""
    sizes = [x.shape.num_elements() for x in like]
    if flat.shape[0] > sum(sizes):
        sizes.append(flat.shape[0] - sum(sizes))
    parts = tf.split(flat, sizes) if len(sizes) > 1 else [flat]
    return [tf.reshape(part, x.shape) for part, x in zip(parts, like)]
