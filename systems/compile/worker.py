"""Compiles one program for absent devices: python -m systems.compile.worker REQUEST.json RESULT.json

It runs in its own process, in an environment with jax and the device's compiler. A request names the exported program,
the platform, the topology and the number of replicas. The result holds the compiler's own figures; the optimized
program's text goes into a file.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import machine_tools

# Set before importing jax: skip the search for devices and the metadata server; let several processes load libtpu.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v3-8",
}  # fmt: skip
_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12")


def compile_program(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles; returns seconds, memory and costs.

    Args:
      request: "artifact", "program" (its manifest entry), "platform", "topology", "target_config", "chip_config",
        "replicas" and "text" (path for the optimized program).
    """
    os.environ.update(_ENVIRONMENT)
    # The runtime of a local GPU (make gpu); jax accepts only one.
    sys.modules |= dict.fromkeys(("jax_plugins.xla_cuda13", "jax_cuda13_plugin"))
    _use_own_ptxas()
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax._src.interpreters import mlir
    from jax.experimental import topologies
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    settings = {"target_config": request["target_config"]} if request["platform"] == "cuda" else {}
    if request["chip_config"]:
        settings = {"chip_config_name": request["chip_config"]}
    name = "topology" if request["platform"] == "cuda" else "topology_name"
    topology = topologies.get_topology_desc(
        platform=request["platform"], **{name: request["topology"]}, **settings
    )
    devices = topology.devices[: request["replicas"]]
    context = mlir.make_ir_context()
    with context:
        module = stablehlo.deserialize_portable_artifact(context, Path(request["artifact"]).read_bytes())
        _donate(ir, module, request["program"])
        began = time.time()
        executable = _compile(devices, module, request["replicas"])
    seconds = time.time() - began
    unread = _write_text(executable, Path(request["text"]))
    memory, used = executable.get_compiled_memory_stats(), resource.getrusage(resource.RUSAGE_SELF)
    return {
        "compile_seconds": round(seconds, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "compiler_gigabytes": round(used.ru_maxrss / 1e6, 2),
        "memory": {
            part: int(getattr(memory, f"{part}_size_in_bytes"))
            for part in ("argument", "output", "alias", "temp", "generated_code")
        },
        "cost": _cost(executable),
    } | ({"unread": unread} if unread else {})


def _write_text(executable: Any, place: Path) -> str:
    """Writes the optimized program's text; returns the reason if it cannot, else ''.

    libtpu's programs for v6e may contain an asynchronous operation with several operands, which jaxlib 0.10.2 cannot
    read.
    """
    try:
        place.write_text(executable.hlo_modules()[0].to_string())
    except RuntimeError as error:
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))[:500]


def _use_own_ptxas() -> None:
    """Puts this environment's NVIDIA assembler (ptxas) before any that the machine has."""
    spec = find_spec("nvidia.cuda_nvcc") if find_spec("nvidia") else None
    if spec:
        folder = list(spec.submodule_search_locations)[0]
        os.environ["PATH"] = f"{folder}/bin{os.pathsep}{os.environ.get('PATH', '')}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={folder}"


def _donate(ir: Any, module: Any, program: dict[str, Any]) -> None:
    """Marks the arguments that results replace, as a run donates its state."""
    places = {argument["name"]: i for i, argument in enumerate(program["arguments"])}
    main = next(op for op in module.body.operations if str(op.attributes["sym_name"]).strip('"') == "main")
    attributes: list[dict] = [{} for _ in places]
    number = ir.IntegerType.get_signless(32)
    for i, result in enumerate(program["results"]):
        if result["updates"] in places:
            attributes[places[result["updates"]]] = {"tf.aliasing_output": ir.IntegerAttr.get(number, i)}
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(entries) for entries in attributes])


def _compile(devices: list, module: Any, replicas: int) -> Any:
    import numpy as np
    from jax._src.lib import xla_client

    assignment = np.array([device.id for device in devices]).reshape(replicas, 1)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, 1
    options.compile_portable_executable = False
    options.device_assignment = xla_client.DeviceAssignment.create(assignment)
    build = options.executable_build_options
    build.num_replicas, build.num_partitions, build.use_spmd_partitioning = replicas, 1, False
    build.use_shardy_partitioner = False
    build.device_assignment = options.device_assignment
    return devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options)


def _cost(executable: Any) -> dict[str, float]:
    """The compiler's own cost analysis; {} if there is none (XLA:GPU)."""
    try:
        analysis = executable.cost_analysis() or {}
    except Exception:  # Some clients do not implement it, or the result is unreadable.
        return {}
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    names = ("flops", "bytes accessed", "optimal_seconds", "transcendentals")
    return {name: float(analysis[name]) for name in names if name in analysis}


def versions() -> dict[str, str]:
    """Returns {package: version} of the packages that determine a program."""
    return machine_tools.versions(*_PACKAGES)


def main(arguments: list[str]) -> int:
    """Writes the result, or {"error": first line of the compiler's message}; without arguments prints the versions."""
    if not arguments:
        print(json.dumps(versions()))
        return 0
    request = json.loads(Path(arguments[0]).read_text())
    try:
        result = compile_program(request)
    except ModuleNotFoundError as error:
        result = {"missing": error.name}
    except Exception as error:  # The compiler's errors have no common type.
        result = {"error": _first_line(error)}
    Path(arguments[1]).write_text(json.dumps(result | {"versions": versions()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
