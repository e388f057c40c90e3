"""Programs with exchanges on the devices of a PJRT client: every device runs the program as one replica.

jax has no public way to compile a program of several replicas that another framework wrote. This module is all that
touches its internals (tried with jax 0.7.1). It imports no TensorFlow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# CPU devices that a process is made to have, at most.
_MOST_CPUS = 64
# XNNPACK's kernels keep the weights that a program was given before, where new ones come to the same address: then a
# program whose weights another program has changed goes on with the old ones (seen with jaxlib 0.7.1).
_CPU_OPTIONS = [("xla_cpu_use_xnnpack", False)]


def prepare(num_replicas: int) -> None:
    """Gives this process as many CPU devices as replicas; called before jax starts, and overrides no flag."""
    flag = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "")
    if 1 < num_replicas <= _MOST_CPUS and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={num_replicas}".strip()


class Placement:
    """The devices of a program's replicas, and arrays with a value of its own on each of them.

    jax has no kind of array for that: these claim to hold the same value on all devices. `parts` reads them.
    """

    def __init__(self, devices: Sequence[Any]):
        """`devices`: jax devices, one for each replica, those of other processes included."""
        import jax

        self.devices = list(devices)
        self.local = [d for d in devices if d.process_index == jax.process_index()]
        mesh = jax.sharding.Mesh(np.array(self.devices), ("replica",))
        self._sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self._alone = [jax.sharding.SingleDeviceSharding(device) for device in self.local]
        self._kinds: dict[tuple, Any] = {}

    def place(self, values: Sequence[np.ndarray]) -> Any:
        """Returns an array of which this process's device i holds value i. The values must not be written any more."""
        from jax._src import array
        from jax._src.lib import xla_client

        kind = self._kind(values[0])
        # jax.device_put, and what checks the pieces of an array, take several times as long. One call for all devices
        # would give all of them the first value.
        put = xla_client.batched_device_put
        pieces = [
            put(kind, sharding, [value], [device])
            for value, sharding, device in zip(values, self._alone, self.local, strict=True)
        ]
        return array.ArrayImpl(kind, self._sharding, pieces, committed=True, _skip_checks=True)

    def _kind(self, value: np.ndarray) -> Any:
        """jax's description of a replica's array; made once for each shape."""
        from jax._src import core

        key = value.shape, value.dtype
        if key not in self._kinds:
            self._kinds[key] = core.ShapedArray(*key)
        return self._kinds[key]

    def joined(self, pieces: Sequence[Any]) -> Any:
        """Returns the array of which this process's device i holds the single-device array `pieces[i]`."""
        import jax

        return jax.make_array_from_single_device_arrays(pieces[0].shape, self._sharding, list(pieces))

    def handlers(self, results: Sequence[tuple[Sequence[int], str]]) -> list[Any]:
        """Returns what makes arrays of a program's results; many times faster than taking each apart and joining it."""
        from jax._src import core
        from jax._src.lib import xla_client

        return [
            xla_client.array_result_handler(
                core.ShapedArray(tuple(shape), np.dtype(dtype)),
                self._sharding,
                committed=True,
                _skip_checks=True,
            )
            for shape, dtype in results
        ]


class OnDevices:
    """A compiled program: `(arguments) -> results`, each an array of `Placement`."""

    def __init__(
        self,
        artifact: bytes,
        devices: Sequence[Any],
        donated: Mapping[int, int],
        results: Sequence[tuple[Sequence[int], str]] | None = None,
        cached: bool = False,
    ):
        """Compiles.

        Args:
          artifact: the portable artifact.
          devices: jax devices, one for each replica.
          donated: argument -> the result that takes its memory.
          results: (shape, dtype) of each result; where they are given, a call takes less time on the host.
          cached: whether jax keeps the program in its compilation cache, and takes it from there.
        """
        from jax._src import compiler
        from jax._src.lib import xla_client

        self.placement = Placement(devices)
        options = xla_client.CompileOptions()
        if devices[0].platform == "cpu":
            options.env_option_overrides = _CPU_OPTIONS
        options.num_replicas, options.num_partitions = len(devices), 1
        numbers = np.array([[d.id] for d in devices])
        options.device_assignment = xla_client.DeviceAssignment.create(numbers)
        client, where = devices[0].client, xla_client.DeviceList(tuple(devices))

        def compiled(module: Any) -> Any:
            if not cached:
                return client.compile_and_load(str(module), where, options)
            return compiler.compile_or_get_cached(client, module, np.array(devices), options, [], where)

        self._executable = _with_module(artifact, donated, compiled)
        self._handlers = self.placement.handlers(results) if results is not None else None

    def __call__(self, *arguments: Any) -> list[Any]:
        results = self._executable.execute_sharded(list(arguments))
        if self._handlers is not None:
            return results.consume_with_handlers(self._handlers)
        return [self.placement.joined(p) for p in results.disassemble_into_single_device_arrays()]

    def placed(self, values: Sequence[np.ndarray]) -> Any:
        """As `Placement.place`."""
        return self.placement.place(values)

    def cost_analysis(self) -> dict[str, float]:
        """Returns the compiler's figures of one replica, where it gives any."""
        return self._executable.cost_analysis() or {}

    def memory_analysis(self) -> Any:
        """Returns the compiler's bytes on one device."""
        return self._executable.get_compiled_memory_stats()


def parts(array: Any) -> list[np.ndarray]:
    """Returns the values of an array on this process's devices, in the order of the replicas."""
    return [np.asarray(piece) for piece in pieces(array)]


def pieces(array: Any) -> list[Any]:
    """Returns the single-device arrays of an array on this process's devices, in the order of the replicas."""
    return [shard.data for shard in sorted(array.addressable_shards, key=lambda s: s.device.id)]


def first(array: Any) -> np.ndarray:
    """Returns the value of an array on the first of this process's devices; waits for it."""
    return np.asarray(array.addressable_data(0))


def _with_module(artifact: bytes, donated: Mapping[int, int], use: Any) -> Any:
    """Returns `use(module)` of the program, with what it may overwrite."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        main = next(
            f for f in module.body.operations if ir.StringAttr(f.attributes["sym_name"]).value == "main"
        )
        about = [dict(_items(a)) for a in main.arg_attrs] if "arg_attrs" in main.attributes else None
        about = about or [{} for _ in main.arguments]
        integer = ir.IntegerType.get_signless(32)
        for argument, result in donated.items():
            about[argument]["tf.aliasing_output"] = ir.IntegerAttr.get(integer, result)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in about])
        # TensorFlow numbers its functions, so that the same program has another name in another run.
        module.operation.attributes["sym_name"] = ir.StringAttr.get("replica")
        return use(module)


def _items(attributes: Any) -> Any:
    return ((named.name, named.attr) for named in attributes)
