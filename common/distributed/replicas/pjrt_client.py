"""Starts jax's PJRT client on the devices of this process, or of all processes that TF_CONFIG names."""

import contextlib
import functools
import os
import pathlib
from typing import Any

from common.distributed.replicas.cluster import START_SECONDS, Cluster, from_environment, meeting
from common.errors import UserError

ASKED = "config.replicas=pjrt"
# Folder of compiled programs, kept between runs; jax's own variable names another one.
_CACHE = pathlib.Path("~/.cache/timetotrain/pjrt")
# Seconds without a sign of life after which a process counts as lost; the others then fail.
_HEARTBEAT_SECONDS = 20


def processes() -> Cluster:
    """Returns the processes of this run; a single one if no launcher has started it.

    Raises UserError if TF_CONFIG is wrong.
    """
    text = os.environ.get("TF_CONFIG")
    return from_environment(text, "pjrt") if text else Cluster(("",), 0)


def start(count: int, cluster: Cluster) -> list[Any]:
    """Returns the first `count` jax devices, process 0's first; creates as many CPU devices as needed.

    Raises UserError if jax is not installed, there are fewer devices, or a process does not come up.
    """
    try:
        import jax
    except ImportError:
        raise UserError(f"{ASKED}: jax is not installed here; run `make setup`") from None
    workers = len(cluster.workers)
    if count % workers:
        raise UserError(
            f"config.num_replicas={count}: {workers} processes do not divide them; use a multiple of {workers}"
        )
    jax.config.update("jax_enable_x64", True)
    # jax uses GPUs and TPUs before CPUs.
    if jax.config.jax_num_cpu_devices < count // workers or workers > 1:
        with contextlib.suppress(RuntimeError):  # jax has started; its devices are counted later.
            jax.config.update("jax_num_cpu_devices", count // workers)
    if workers > 1:
        _join(jax, cluster)
    if not jax.config.jax_compilation_cache_dir and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(_CACHE.expanduser()))
    try:
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise UserError(
            f"{ASKED}: jax finds no device ({reason}); JAX_PLATFORMS=cpu takes the CPU"
        ) from error
    if len(devices) < count or (workers > 1 and len(devices) > count):
        fix = f"set --config.num_replicas={len(devices)}"
        if devices[0].platform == "cpu":
            fix = (
                "give every process the same number" if workers > 1 else "jax has started before; start anew"
            )
        raise UserError(
            f"config.num_replicas={count}: jax has {len(devices)} {devices[0].platform.upper()} devices here; {fix}"
        )
    return devices[:count]


def _join(jax: Any, cluster: Cluster) -> None:
    """Connects the processes, so that each sees all processes' devices. CPUs exchange through Gloo."""
    if jax.distributed.is_initialized():
        return  # This process has already joined.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = cluster.local_address()
    _bind_gloo(address)
    port = cluster.workers[0].rpartition(":")[2]
    try:
        with meeting(cluster, "pjrt"):
            jax.distributed.initialize(
                cluster.workers[0],
                len(cluster.workers),
                cluster.index,
                coordinator_bind_address=f"{f'[{address}]' if ':' in address else address}:{port}",
                initialization_timeout=START_SECONDS,
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            )
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        fix = "use `timetotrain launch`"
        raise UserError(f"{ASKED}: the processes do not find each other ({reason}); {fix}") from error


def _bind_gloo(address: str) -> None:
    """Makes Gloo listen on `address`; by itself it takes what this host's name resolves to, often 127.0.1.1."""
    with contextlib.suppress(ImportError, AttributeError):  # Not jax's public interface.
        from jax._src.lib import _jax

        make = _jax.make_gloo_tcp_collectives
        if not isinstance(make, functools.partial):
            _jax.make_gloo_tcp_collectives = functools.partial(make, hostname=address)
