"""Backend on a PJRT client's devices: the CPUs, GPUs and TPUs that jax reaches, one replica per device.

TensorFlow traces a step once, as the backend `xla` does, and lowers it to StableHLO with the exchanges inside. jax's
client compiles that and runs it on every device. Each call of `run` is one program. The state lives on the devices: a
program's new values take the old values' memory, while TensorFlow's variables keep their initial values, or, of a
network that is built in parts, nothing. `run` returns before the devices have finished; reading a value waits for it.
"""

from __future__ import annotations

import collections
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from common.distributed import blank, pjrt_program, stablehlo
from common.distributed.read_ahead import ReadAhead
from common.distributed.replicas.base import Initial, Shard, UnsupportedError, flatten, unflatten
from common.distributed.replicas.pjrt_client import ASKED, processes, start
from common.distributed.replicas.pjrt_values import Copy, DeviceState, Value
from common.distributed.replicas.xla import Xla
from common.errors import UserError

# jax's messages for a process that has ended or no longer answers.
_LOST = re.compile(r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|[Gg]loo|Connection (closed|reset)|heartbeat")
# How many calls' replaced state to keep: more than the steps that a block starts before it reads the first of them.
_CALLS_UNDER_WAY = 4
# Batches on the devices that wait for their step.
_BATCHES_AHEAD = 2


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
        self._states: dict[int, DeviceState] = {}
        self._constants: dict[int, tuple[tf.Tensor, Any]] = {}
        self._programs: dict[tuple, _Program] = {}
        # Arrays that were donated to a program. Freeing one would block until that program ends, so we keep them for
        # a few calls.
        self.replaced: collections.deque[list[Any]] = collections.deque(maxlen=_CALLS_UNDER_WAY)
        first = self.process_index * len(self._placement.local)
        numbers = [np.int32(first + i) for i in range(len(self._placement.local))]
        self._states[id(self.number.handle)] = DeviceState(self.number, self._placement, lambda: numbers)

    @property
    def platform(self) -> str:
        """The kind of the devices, in their compiler's words."""
        return self._placement.devices[0].device_kind

    @property
    def compute_capability(self) -> float:
        """The compute capability of an NVIDIA GPU, such as 9.0; infinity for other devices."""
        # Other GPUs have an attribute of this name, too, which is not a number.
        device = self._placement.devices[0]
        return float(device.compute_capability) if "NVIDIA" in device.device_kind else math.inf

    def scope(self, in_parts: bool = False) -> AbstractContextManager[Any]:
        def create(make: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
            # A blank variable takes no memory; its value exists only on the way to the devices.
            variable = blank.without_value(make, arguments) if in_parts else None
            if variable is None:
                variable = make(**arguments)
                self._hold(variable)
            else:
                initial = arguments["initial_value"]
                self._hold(variable, lambda: tf.cast(initial(), variable.dtype).numpy())
            return variable

        return tf.variable_creator_scope(create)

    def sum_bucket(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # CPU devices synchronize at every sum, so each bucket needs only one.
        if self.platform == "cpu":
            return unflatten(self.all_reduce(flatten(tensors)), tensors)
        return super().sum_bucket(tensors)

    def per_replica_variable(self, initial: Initial, name: str, **kind: Any) -> tf.Variable:
        variable = super().per_replica_variable(initial, name, **kind)
        self._hold(variable)
        return variable

    def sharded_variable(
        self, parts: Callable[[], np.ndarray], size: int, dtype: tf.DType, name: str
    ) -> tf.Variable:
        variable = super().sharded_variable(parts, size, dtype, name)
        first, count = self.process_index * len(self._placement.local), len(self._placement.local)
        self._states[id(variable.handle)] = DeviceState(
            variable, self._placement, lambda: parts()[first : first + count]
        )
        return variable

    def _hold(self, variable: tf.Variable, value: Callable[[], np.ndarray] | None = None) -> None:
        value, local = value or (lambda: np.asarray(variable.numpy())), len(self._placement.local)
        self._states.setdefault(
            id(variable.handle), DeviceState(variable, self._placement, lambda: [value()] * local)
        )

    def untouched(self, variable: tf.Variable) -> bool:
        state = self._states.get(id(variable.handle))
        return state is not None and state.untouched

    def renew(self, variables: Sequence[tf.Variable]) -> None:
        self.replaced.clear()
        for variable in variables:
            self._states[id(variable.handle)].renew()

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, function: Callable, args: tuple = ()) -> Any:
        """Starts `function` on all devices; compiles it first, unless it was compiled for arguments of these shapes.

        The leaves of `args` are what `dataset` yields, or tensors that are the same on every replica. This object keeps
        the function's trace for its lifetime. Returns the structure that the function returned, with `Value` leaves.
        Raises UnsupportedError inside a tf.function.
        """
        if not tf.executing_eagerly():
            fix = "call it outside of tf.function"
            raise UnsupportedError(f"{ASKED}: each call is a program of its own; {fix}")
        leaves = tf.nest.flatten(args)
        values = [leaf if isinstance(leaf, Value) else self._placed(leaf) for leaf in leaves]
        key = (function, *(v.kind for v in values))
        program = self._programs.get(key)
        if program is None:
            like = [tf.zeros(shape, dtype.name) for shape, dtype in (v.kind for v in values)]
            program = self._programs[key] = _Program(self, function, tf.nest.pack_sequence_as(args, like))
        return program([v.array for v in values])

    def _placed(self, value: Any) -> Value:
        """Places a tensor or a number, the same on every replica, on the devices."""
        return Value(self._placement.place([np.asarray(value)] * len(self._placement.local)))

    def state_of(self, captured: tf.Tensor) -> DeviceState:
        """Returns the state behind a tensor that a trace closes over; places a constant on the devices.

        Raises UserError for a variable that this object did not make.
        """
        if id(captured) in self._states:
            return self._states[id(captured)]
        if captured.dtype == tf.resource:
            raise UserError(f"{ASKED}: the step uses a variable made outside of the replicas' scope")
        if id(captured) not in self._constants:
            copies = [captured.numpy()] * len(self._placement.local)
            state = DeviceState(None, self._placement, lambda: copies)
            self._constants[id(captured)] = captured, state
        return self._constants[id(captured)][1]

    # -- outside `run` -----------------------------------------------------------------------------------------------

    def local_results(self, value: Any) -> list[Any]:
        if isinstance(value, Value):
            return [Copy(lambda x=x: x) for x in value.local()]
        state = self._states.get(id(value.handle)) if isinstance(value, tf.Variable) else None
        if state is None:
            return [value]

        def copy(index: int) -> Copy:
            return Copy(lambda: state.read(index), lambda new: state.write(index, new))

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

    def _all_reduce_max(self, value: int) -> int:
        return value if self.num_processes == 1 else int(_of_all_processes(np.int64(value)).max())

    def all_values(self, variable: tf.Variable) -> np.ndarray:
        local = super().all_values(variable)
        if self.num_processes == 1:
            return local
        return _of_all_processes(local).reshape(self.num_replicas, *local.shape[1:])

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
        for state in self._states.values():
            state.refresh()

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

    def _placed(self, batches: Sequence[Sequence[np.ndarray]]) -> Any:
        """Places the batches of this process's replicas, each a list of arrays, on the devices."""
        placed = [Value(self._placement.place(values)) for values in zip(*batches, strict=True)]
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
                local = [fetch(iterator=batches._iterator_resource) for _ in self._placement.local]
            except tf.errors.OutOfRangeError:
                return
            yield [list(map(np.asarray, batch)) for batch in local]


class _Program:
    """A function as every device runs it, compiled for its arguments' shapes."""

    def __init__(self, replicas: Pjrt, function: Callable, args: Any):
        compiled = tf.function(lambda args: function(*args), jit_compile=True, autograph=False)
        with tf.device("CPU:0"):
            lowered = stablehlo.lower(compiled, args, "step", ASKED)
        self._captured = [replicas.state_of(tensor) for tensor in lowered.captured]
        self._check_number(replicas, lowered, len(tf.nest.flatten(args)))
        batch_count = len(lowered.arguments) - len(self._captured)
        self._returned, self._result_count = lowered.returned, len(lowered.results) - len(lowered.aliases)
        self._updates = [(result, self._captured[a - batch_count]) for result, a in lowered.aliases.items()]
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
        arrays = [state.array for state in self._captured]
        results = self._run(*arguments, *arrays)
        self._replaced.append(arrays)
        for result, state in self._updates:
            state.array = results[result]
        return tf.nest.pack_sequence_as(self._returned, [Value(x) for x in results[: self._result_count]])

    def _check_number(self, replicas: Pjrt, lowered: stablehlo.Lowered, batch_count: int) -> None:
        """Raises a UserError if XLA fixed the replica's number at compile time."""
        number = replicas.state_of(replicas.number.handle)
        if number not in self._captured:
            return
        name = f"%arg{batch_count + self._captured.index(number)}"
        if name not in re.findall(r"%arg\d+\b(?!: )", lowered.text):
            raise UserError(
                f"{ASKED}: XLA takes the replica's number as a constant; cut with Replicas.cut where a start depends "
                "on it"
            )


def _of_all_processes(value: Any) -> np.ndarray:
    """Returns the values of all processes, [processes, *shape]; every process calls it."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(value)))
