"""Backend on a PJRT client's devices: the CPUs, GPUs and TPUs that jax reaches, one replica per device.

TensorFlow traces a step once, as the backend `xla` does, and lowers it to StableHLO with the exchanges inside. jax's
client compiles that and runs it on every device. Each call of `run` is one program. The state lives on the devices: a
program's new values take the old values' memory, while TensorFlow's variables keep their initial values. `run` returns
before the devices have finished; reading a value waits for it.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed import pjrt_program, stablehlo
from common.distributed.read_ahead import ReadAhead
from common.distributed.replicas.base import Shard, UnsupportedError, flatten, unflatten
from common.distributed.replicas.pjrt_client import ASKED, processes, start
from common.distributed.replicas.xla import Xla
from common.errors import UserError

# jax's messages for a process that has ended or no longer answers.
_LOST = re.compile(r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|[Gg]loo|Connection (closed|reset)|heartbeat")
# How many calls' replaced state to keep: more than the steps that a block starts before it reads the first of them.
_CALLS_UNDER_WAY = 4
# Batches on the devices that wait for their step.
_BATCHES_AHEAD = 2


class Value:
    """A tensor on the devices, with a separate value for each replica.

    Attributes:
      array: an array of `pjrt_program.Placement`.
    """

    def __init__(self, array: Any):
        self.array = array

    @property
    def kind(self) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of a replica's value."""
        return self.array.shape[1:], self.array.dtype

    def local(self) -> list[np.ndarray]:
        """Returns copies of the values of this process's replicas; waits for them."""
        return [np.array(x) for x in pjrt_program.parts(self.array)]

    def first(self) -> np.ndarray:
        """Returns a copy of the value of this process's first replica; waits for it."""
        return np.array(pjrt_program.first(self.array))


class _Held:
    """A variable's values on the devices; the first access copies them there from TensorFlow's variable."""

    def __init__(
        self, variable: tf.Variable, placement: pjrt_program.Placement, initial: Sequence[Any] | None = None
    ):
        self._placement = placement
        self._variable, self._initial = variable, initial
        self._pieces: list[Any] | None = None  # Written values, until they form an array again.

    # A plain attribute after the first access: every call of a program reads and sets it for hundreds of variables.
    @functools.cached_property
    def array(self) -> Any:
        """The values, an array of `pjrt_program.Placement`."""
        if self._pieces is not None:
            pieces, self._pieces = self._pieces, None
            return self._placement.joined(pieces)
        return self._placement.place(
            self._initial or [np.asarray(self._variable.numpy())] * len(self._placement.local)
        )

    def read(self, index: int) -> np.ndarray:
        """Returns a copy of the value of this process's replica `index`."""
        # Copy, because the devices write the next value into this memory.
        return np.array(pjrt_program.pieces(self.array)[index])[0]

    def refresh(self) -> None:
        """Sets TensorFlow's variable to the value of this process's first replica."""
        if "array" in self.__dict__ or self._pieces is not None:
            self._variable.assign(self.read(0))

    def write(self, index: int, value: Any) -> None:
        """Writes a value to the device of this process's replica `index`."""
        if self._pieces is None:
            self._pieces = pjrt_program.pieces(self.array)
        shape, dtype = tuple(self._variable.shape), self._variable.dtype.as_numpy_dtype
        value = np.asarray(value).astype(dtype, copy=True)
        if value.shape != shape:
            raise ValueError(f"{self._variable.name} is {list(shape)}, the value {list(value.shape)}")
        self._pieces[index] = self._placement.piece(value, index)
        self.__dict__.pop("array", None)


class Copy:
    """One replica's copy of a variable (readable and writable) or of a result of `run` (read-only)."""

    def __init__(self, read: Callable[[], np.ndarray], write: Callable[[Any], None] | None = None):
        self._read, self._write = read, write

    def numpy(self) -> np.ndarray:
        return self._read()

    def assign(self, value: Any) -> None:
        self._write(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._read().astype(dtype) if dtype else self._read()

    def __float__(self) -> float:
        return float(self._read())


tf.register_tensor_conversion_function(
    Copy, lambda copy, dtype=None, name=None, as_ref=False: tf.constant(copy.numpy(), dtype)
)


class Pjrt(Xla):
    """`num_replicas` devices of this process's PJRT client, or of all processes of the run, equally many in each.

    Raises UserError if jax is missing, has fewer devices, or already runs with another number of CPU devices; TF_CONFIG
    is wrong, or a process does not come up.
    """

    name = "pjrt"
    drives_from_host = True

    def __init__(self, num_replicas: int):
        cluster = processes()
        self.process_index, self.num_processes = cluster.index, len(cluster.workers)
        devices = start(num_replicas, cluster)
        # jax owns the devices; TensorFlow describes the network and reads the data on the CPU.
        if tf.config.list_physical_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")
        super().__init__(num_replicas)
        self._placement = pjrt_program.Placement(devices)
        self._held: dict[int, _Held] = {}
        self._constants: dict[int, tuple[tf.Tensor, Any]] = {}
        self._programs: dict[tuple, _Program] = {}
        # Arrays that were donated to a program. Freeing one would block until that program ends, so we keep them for
        # a few calls.
        self.replaced: collections.deque[list[Any]] = collections.deque(maxlen=_CALLS_UNDER_WAY)
        first = self.process_index * len(self._placement.local)
        numbers = [np.int32(first + i) for i in range(len(self._placement.local))]
        self._held[id(self.number.handle)] = _Held(self.number, self._placement, numbers)

    @property
    def platform(self) -> str:
        """The kind of the devices, in their compiler's words."""
        return self._placement.devices[0].device_kind

    def scope(self) -> AbstractContextManager[Any]:
        def create(make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
            variable = make(**arguments)
            self._hold(variable)
            return variable

        return tf.variable_creator_scope(create)

    def sum_bucket(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # CPU devices synchronize at every sum, so each bucket needs only one.
        if self.platform == "cpu":
            return unflatten(self.all_reduce(flatten(tensors)), tensors)
        return super().sum_bucket(tensors)

    def per_replica_variable(self, initial: tf.Tensor, name: str) -> tf.Variable:
        variable = super().per_replica_variable(initial, name)
        self._hold(variable)
        return variable

    def _hold(self, variable: tf.Variable) -> None:
        self._held.setdefault(id(variable.handle), _Held(variable, self._placement))

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, function: Callable, args: tuple = ()) -> Any:
        """Starts `function` on all devices; compiles it first, unless it was compiled for arguments of these shapes.

        The leaves of `args` are what `dataset` yields, or tensors that are the same on every replica. This object keeps
        the function's trace for its lifetime. Returns the structure that the function returned, with `Value` leaves.
        """
        if not tf.executing_eagerly():
            fix = "call it outside of tf.function"
            raise UnsupportedError(f"{ASKED}: each call is a program of its own; {fix}")
        leaves = tf.nest.flatten(args)
        given = [leaf if isinstance(leaf, Value) else self._placed(leaf) for leaf in leaves]
        key = (function, *(v.kind for v in given))
        program = self._programs.get(key)
        if program is None:
            like = [tf.zeros(shape, dtype.name) for shape, dtype in (v.kind for v in given)]
            program = self._programs[key] = _Program(self, function, tf.nest.pack_sequence_as(args, like))
        return program([v.array for v in given])

    def _placed(self, value: Any) -> Value:
        """Places a tensor or a number, the same on every replica, on the devices."""
        return Value(self._placement.place([np.asarray(value)] * len(self._placement.local)))

    def held(self, captured: tf.Tensor) -> _Held:
        """Returns the state behind a tensor that a trace closes over; places a constant on the devices."""
        if id(captured) in self._held:
            return self._held[id(captured)]
        if captured.dtype == tf.resource:
            raise UserError(f"{ASKED}: the step uses a variable made outside of the replicas' scope")
        if id(captured) not in self._constants:
            held = _Held(None, self._placement, [captured.numpy()] * len(self._placement.local))
            self._constants[id(captured)] = captured, held
        return self._constants[id(captured)][1]

    # -- outside `run` -----------------------------------------------------------------------------------------------

    def local_results(self, value: Any) -> list[Any]:
        if isinstance(value, Value):
            return [Copy(lambda x=x: x) for x in value.local()]
        held = self._held.get(id(value.handle)) if isinstance(value, tf.Variable) else None
        if held is None:
            return [value]

        def copy(index: int) -> Copy:
            return Copy(lambda: held.read(index), lambda new: held.write(index, new))

        return [copy(index) for index in range(len(self._placement.local))]

    def sum(self, value: Any) -> Any:
        return tf.nest.map_structure(lambda x: tf.add_n(list(map(tf.constant, self._everywhere(x)))), value)

    def gather(self, value: Any) -> Any:
        return tf.nest.map_structure(lambda x: tf.constant(np.concatenate(self._everywhere(x))), value)

    def _everywhere(self, value: Value) -> Sequence[np.ndarray]:
        """Returns the values of all replicas of all processes."""
        local = value.local()
        if self.num_processes == 1:
            return local
        return _of_all_processes(np.stack(local)).reshape(self.num_replicas, *local[0].shape)

    def dataset(self, make: Callable[[Shard], tf.data.Dataset]) -> Batches:
        return Batches(make(Shard(self.process_index, self.num_processes)), self._placement)

    def agree(self, value: int) -> int:
        return value if self.num_processes == 1 else int(_of_all_processes(np.int64(value)).max())

    def all_values(self, variable: tf.Variable) -> np.ndarray:
        own = super().all_values(variable)
        if self.num_processes == 1:
            return own
        return _of_all_processes(own).reshape(self.num_replicas, *own.shape[1:])

    def peer_lost(self, error: BaseException) -> bool:
        if self.num_processes == 1:
            return False
        import jax

        lost = isinstance(error, jax.errors.JaxRuntimeError) and _LOST.search(str(error)) is not None
        return lost or super().peer_lost(error)

    def close(self) -> None:
        if self.num_processes > 1:
            import jax

            jax.distributed.shutdown()

    def refresh(self) -> None:
        for held in self._held.values():
            held.refresh()

    def compile(self, function: Callable, enabled: bool) -> Callable:
        """Returns `function` unchanged, because `run` compiles it."""
        return function


class Batches:
    """A dataset's batches on the devices; consecutive batches go to consecutive replicas.

    A thread reads batches and copies them to the devices while the devices work on earlier ones.
    """

    def __init__(self, dataset: tf.data.Dataset, placement: pjrt_program.Placement):
        self._dataset, self._placement = dataset, placement

    def __iter__(self) -> Iterator[Any]:
        return ReadAhead(map(self._placed, self._read()), _BATCHES_AHEAD)

    def stacks(self, size: int) -> Iterator[tuple[Any, int]]:
        """Yields the batches of `size` steps together, [size, ...], and the number of steps in them.

        Only the last stack may hold fewer steps; it is padded with copies of its last batch. Raises
        InvalidArgumentError if the batches of a stack differ in shape.
        """
        return ReadAhead(self._stacked(size), _BATCHES_AHEAD)

    def _stacked(self, size: int) -> Iterator[tuple[Any, int]]:
        steps = self._read()
        while batches := list(itertools.islice(steps, size)):
            padded = batches + [batches[-1]] * (size - len(batches))
            # Transpose: from [steps][replicas][leaves] to [replicas][leaves], each leaf stacked over steps.
            try:
                own = [list(map(np.stack, zip(*b, strict=True))) for b in zip(*padded, strict=True)]
            except ValueError as error:
                text = f"config.steps_per_execution={size}: batches of one call have several shapes; use 1"
                raise tf.errors.InvalidArgumentError(None, None, text) from error
            yield self._placed(own), len(batches)

    def _placed(self, own: Sequence[Sequence[np.ndarray]]) -> Any:
        """Places the batches of this process's replicas, each a list of arrays, on the devices."""
        placed = [Value(self._placement.place(values)) for values in zip(*own, strict=True)]
        return tf.nest.pack_sequence_as(self._dataset.element_spec, placed)

    def _read(self) -> Iterator[list[list[np.ndarray]]]:
        """Yields, for each step, the batches of this process's replicas."""
        leaves = tf.nest.flatten(self._dataset.element_spec)
        # The operation behind `next`, which takes twice as long: it builds a structure that this method takes apart.
        fetch = functools.partial(
            tf.raw_ops.IteratorGetNext,
            output_types=[leaf.dtype for leaf in leaves],
            output_shapes=[leaf.shape for leaf in leaves],
        )
        batches = iter(self._dataset)
        while True:
            try:
                own = [fetch(iterator=batches._iterator_resource) for _ in self._placement.local]
            except tf.errors.OutOfRangeError:
                return
            yield [list(map(np.asarray, batch)) for batch in own]


class _Program:
    """A function as every device runs it, compiled for its arguments' shapes."""

    def __init__(self, replicas: Pjrt, function: Callable, args: Any):
        compiled = tf.function(lambda args: function(*args), jit_compile=True, autograph=False)
        with tf.device("CPU:0"):
            lowered = stablehlo.lower(compiled, args, "step", ASKED)
        self._captured = [replicas.held(tensor) for tensor in lowered.captured]
        self._check_number(replicas, lowered, len(tf.nest.flatten(args)))
        given = len(lowered.arguments) - len(self._captured)
        self._returned, self._result_count = lowered.returned, len(lowered.results) - len(lowered.aliases)
        self._written = [(result, self._captured[a - given]) for result, a in lowered.aliases.items()]
        donated = {argument: result for result, argument in lowered.aliases.items()}
        self._replaced = replicas.replaced
        self._run = pjrt_program.OnDevices(
            lowered.artifact(partitioned=True),
            replicas._placement,
            lowered.arguments,
            lowered.results,
            donated,
        )

    def __call__(self, arguments: Sequence[Any]) -> Any:
        state = [held.array for held in self._captured]
        results = self._run(*arguments, *state)
        self._replaced.append(state)
        for result, held in self._written:
            held.array = results[result]
        return tf.nest.pack_sequence_as(self._returned, [Value(x) for x in results[: self._result_count]])

    def _check_number(self, replicas: Pjrt, lowered: stablehlo.Lowered, given: int) -> None:
        """Raises a UserError if XLA fixed the replica's number at compile time."""
        number = replicas.held(replicas.number.handle)
        if number not in self._captured:
            return
        name = f"%arg{given + self._captured.index(number)}"
        if name not in re.findall(r"%arg\d+\b(?!: )", lowered.text):
            raise UserError(
                f"{ASKED}: XLA takes the replica's number as a constant; cut with Replicas.cut where a start depends "
                "on it"
            )


def _of_all_processes(value: Any) -> np.ndarray:
    """Returns the values of all processes, [processes, *shape]; every process calls it."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(value)))
