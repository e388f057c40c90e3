"""Programs with exchanges on jax's devices: every device runs the program as one replica.

A program is StableHLO that TensorFlow wrote. It runs through jax's public API only: an export with its module
replaced, called inside `jax.shard_map`. A per-replica value is an ordinary jax array, [N, ...], sharded along its
first axis. This module imports no TensorFlow.
"""

import dataclasses
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# The most CPU devices that a process creates.
_MOST_CPUS = 64
# The mesh's one axis.
_AXIS = "replica"
# XNNPACK's kernels cache a program's weights by address. If another program changes the weights in place, the first
# program keeps using the old ones (seen with jaxlib 0.7.1).
_CPU_OPTIONS = {"xla_cpu_use_xnnpack": False}
# XLA's message for an option that it no longer has.
_NO_OPTION = "No such compile option"

# Shape and dtype of a replica's value.
Kind = tuple[Sequence[int], str]


def prepare(num_replicas: int) -> None:
    """Gives this process one CPU device per replica, unless the flag is set already; call it before jax starts."""
    flag = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "")
    if 1 < num_replicas <= _MOST_CPUS and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={num_replicas}".strip()


class Placement:
    """The devices of a program's replicas, and per-replica arrays on them, [N, ...]."""

    def __init__(self, devices: Sequence[Any]):
        """`devices`: one jax device for each replica, including other processes' devices."""
        import jax

        self.devices = list(devices)
        self.local = [d for d in devices if d.process_index == jax.process_index()]
        self.mesh = jax.sharding.Mesh(np.array(self.devices), (_AXIS,))
        self.spec = jax.sharding.PartitionSpec(_AXIS)
        self.sharding = jax.sharding.NamedSharding(self.mesh, self.spec)
        self._before = self.devices.index(self.local[0])  # Replicas of the processes before this one.

    def place(self, values: Sequence[np.ndarray]) -> Any:
        """Returns an array whose part on local device i is value i. Do not write to the values afterwards."""
        import jax

        def piece(index: tuple[slice, ...]) -> np.ndarray:
            return values[(index[0].start or 0) - self._before][None]

        shape = (len(self.devices), *values[0].shape)
        return jax.make_array_from_callback(shape, self.sharding, piece)

    def piece(self, value: np.ndarray, index: int) -> Any:
        """Returns a value on this process's device `index`, for `joined`."""
        import jax

        return jax.device_put(value[None], self.local[index])

    def joined(self, pieces: Sequence[Any]) -> Any:
        """Returns the array whose part on local device i is `pieces[i]`, a one-device array [1, ...]."""
        import jax

        shape = (len(self.devices), *pieces[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.sharding, list(pieces))


class OnDevices:
    """A compiled program: `(arguments) -> results`, each an array of `Placement`."""

    def __init__(
        self,
        artifact: bytes,
        placement: Placement,
        arguments: Sequence[Kind],
        results: Sequence[Kind],
        donated: Mapping[int, int],
    ):
        """Compiles the program, or takes it from jax's compilation cache if that has a folder.

        Args:
          artifact: the portable artifact; its collectives have channels (`stablehlo.with_channels`).
          placement: the replicas' devices.
          arguments, results: shape and dtype of each, for one replica.
          donated: argument -> the result that takes its memory.
        """
        import jax

        function = function_of(artifact, arguments, results)
        # jax gives a donated argument's memory to the first result of the same kind that has none yet.
        order = [donated[argument] for argument in sorted(donated)]
        order += [i for i in range(len(results)) if i not in donated.values()]
        places = [order.index(i) for i in range(len(results))]
        self._in_order = operator.itemgetter(*places) if len(places) > 1 else tuple

        def replica(*shards: Any) -> list[Any]:
            results = function(*(x.reshape(x.shape[1:]) for x in shards))
            return [results[i].reshape(1, *results[i].shape) for i in order]

        sharding, specs = placement.sharding, {"in_specs": placement.spec, "out_specs": placement.spec}
        step = jax.shard_map(replica, mesh=placement.mesh, **specs, check_vma=False)
        shardings = {"in_shardings": sharding, "out_shardings": sharding}
        step = jax.jit(step, **shardings, donate_argnums=tuple(sorted(donated)), keep_unused=True)
        shapes = [
            jax.ShapeDtypeStruct((len(placement.devices), *shape), dtype, sharding=sharding)
            for shape, dtype in arguments
        ]
        on_cpu = placement.devices[0].platform == "cpu"
        self._compiled = compiled(step.lower(*shapes), on_cpu)

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        return self._in_order(self._compiled(*arguments))

    def cost_analysis(self) -> dict[str, float]:
        """Returns the compiler's figures for one replica, if it gives any."""
        return self._compiled.cost_analysis() or {}

    def as_text(self) -> str:
        """Returns the compiled program as HLO text."""
        return self._compiled.as_text()

    def memory_analysis(self) -> Any:
        """Returns the compiler's bytes on one device."""
        return self._compiled.memory_analysis()


def function_of(artifact: bytes, arguments: Sequence[Kind], results: Sequence[Kind]) -> Callable[..., list]:
    """Returns a jax function that runs the artifact's `main`: an export of the same signature gets its module."""
    import jax
    import jax.export
    import jax.numpy as jnp

    def empty(*_: Any) -> list[Any]:
        return [jnp.zeros(tuple(shape), dtype) for shape, dtype in results]

    shapes = [jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype in arguments]
    platforms = [jax.export.default_export_platform()]
    exported = jax.export.export(jax.jit(empty, keep_unused=True), platforms=platforms)(*shapes)
    return dataclasses.replace(exported, mlir_module_serialized=artifact).call


def compiled(lowered: Any, on_cpu: bool) -> Any:
    """Compiles the result of `jax.jit(...).lower(...)`; on a CPU without XNNPACK, if this jaxlib has that option."""
    if not on_cpu:
        return lowered.compile()
    try:
        return lowered.compile(_CPU_OPTIONS)
    except Exception as error:  # The exception's type differs between jax's releases.
        if _NO_OPTION not in str(error):
            raise
        return lowered.compile()


def parts(array: Any) -> list[np.ndarray]:
    """Returns the values of an array on this process's devices, in replica order."""
    return [np.asarray(piece)[0] for piece in pieces(array)]


def pieces(array: Any) -> list[Any]:
    """Returns the parts of an array on this process's devices, [1, ...] each, in replica order."""
    return [shard.data for shard in sorted(array.addressable_shards, key=lambda s: s.index[0].start or 0)]


def first(array: Any) -> np.ndarray:
    """Returns the value of an array on this process's first device; waits for it."""
    return np.asarray(array.addressable_data(0))[0]
