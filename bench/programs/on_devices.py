"""A program with exchanges, compiled by jax for N devices of one PJRT client: every device runs it as one replica.

jax has no public way to compile a program of several replicas that another framework wrote; this module is all that
touches its internals (tried with jax 0.7.1).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# CPU devices that a process is made to have, at most.
_MOST_CPUS = 64


def prepare(num_replicas: int) -> None:
    """Gives this process as many CPU devices as replicas; called before jax starts, and overrides no flag."""
    flag = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "")
    if 1 < num_replicas <= _MOST_CPUS and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={num_replicas}".strip()


class OnDevices:
    """A compiled program: `(arguments) -> results`, each a jax array with one value of its own on every device.

    jax has no kind of array for that: these claim to hold the same value on all devices. `parts` reads them.
    """

    def __init__(self, artifact: bytes, devices: Sequence[Any], donated: Mapping[int, int]):
        """Compiles.

        Args:
          artifact: the portable artifact.
          devices: jax devices, one for each replica.
          donated: argument -> the result that takes its memory.
        """
        import jax
        from jax._src.lib import xla_client

        self._placed = jax.sharding.NamedSharding(
            jax.sharding.Mesh(np.array(devices), ("replica",)), jax.sharding.PartitionSpec()
        )
        self._devices = list(devices)
        options = xla_client.CompileOptions()
        options.num_replicas, options.num_partitions = len(devices), 1
        numbers = np.array([[d.id] for d in devices])
        options.device_assignment = xla_client.DeviceAssignment.create(numbers)
        client, text = devices[0].client, _text(artifact, donated)
        self._executable = client.compile_and_load(text, xla_client.DeviceList(tuple(devices)), options)

    def __call__(self, *arguments: Any) -> list[Any]:
        results = self._executable.execute_sharded(list(arguments)).disassemble_into_single_device_arrays()
        return [self._joined(pieces) for pieces in results]

    def placed(self, values: Sequence[np.ndarray]) -> Any:
        """Returns an array of which device i holds value i."""
        import jax

        return self._joined([jax.device_put(v, device) for v, device in zip(values, self._devices)])

    def _joined(self, pieces: Sequence[Any]) -> Any:
        import jax

        return jax.make_array_from_single_device_arrays(pieces[0].shape, self._placed, list(pieces))

    def cost_analysis(self) -> dict[str, float]:
        """Returns the compiler's figures of one replica, where it gives any."""
        return self._executable.cost_analysis() or {}

    def memory_analysis(self) -> Any:
        """Returns the compiler's bytes on one device."""
        return self._executable.get_compiled_memory_stats()


def parts(array: Any) -> list[np.ndarray]:
    """Returns the values of an array on all devices, in the order of the replicas."""
    return [np.asarray(shard.data) for shard in sorted(array.addressable_shards, key=lambda s: s.device.id)]


def _text(artifact: bytes, donated: Mapping[int, int]) -> str:
    """Returns the program as text, with what it may overwrite."""
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
        return str(module)


def _items(attributes: Any) -> Any:
    return ((named.name, named.attr) for named in attributes)
