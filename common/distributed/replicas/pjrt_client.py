"""Starts jax's PJRT client: its devices in this process, or those of all processes that TF_CONFIG names."""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import Any

from common.distributed.replicas.cluster import START_SECONDS, Cluster, from_environment, met
from common.errors import UserError

ASKED = "config.replicas=pjrt"
# Where compiled programs are kept between runs; jax's own variable names another folder.
_CACHE = pathlib.Path("~/.cache/timetotrain/pjrt")
# Seconds without a sign of life after which a process counts as lost and the others fail.
_HEARTBEAT_SECONDS = 20


def processes() -> Cluster:
    """Returns the processes of this run, a single one where no launcher has started it.

    Raises:
      UserError: TF_CONFIG is wrong.
    """
    text = os.environ.get("TF_CONFIG")
    return from_environment(text, "pjrt") if text else Cluster(("",), 0)


def start(count: int, cluster: Cluster) -> list[Any]:
    """Returns the first `count` of jax's devices, those of process 0 first; of CPUs, as many are made.

    Raises:
      UserError: jax is not installed, there are fewer devices, or a process does not come up.
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
    _make_cpus(jax, count // workers, workers > 1)
    if workers > 1:
        _join(jax, cluster)
    _keep_programs(jax)
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
            fix = "jax has started before; start anew"
        raise UserError(
            f"config.num_replicas={count}: jax has {len(devices)} {devices[0].platform.upper()} devices here; {fix}"
        )
    return devices[:count]


def _make_cpus(jax: Any, count: int, exactly: bool) -> None:
    """Has jax make at least so many CPU devices in this process, or exactly so many; it takes GPUs and TPUs first."""
    if jax.config.jax_num_cpu_devices < count or exactly:
        with contextlib.suppress(RuntimeError):  # jax has started; its devices are counted later.
            jax.config.update("jax_num_cpu_devices", count)


def _join(jax: Any, cluster: Cluster) -> None:
    """Connects the processes: each then sees the devices of all. CPUs exchange by Gloo."""
    if jax.distributed.is_initialized():
        return  # This process has joined before.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        with met(cluster, "pjrt"):
            jax.distributed.initialize(
                cluster.workers[0],
                len(cluster.workers),
                cluster.index,
                initialization_timeout=START_SECONDS,
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            )
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise UserError(f"{ASKED}: the processes do not find each other ({reason})") from error


def _keep_programs(jax: Any) -> None:
    """Has jax keep compiled programs between runs, where nobody has chosen a folder for them."""
    if not jax.config.jax_compilation_cache_dir and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(_CACHE.expanduser()))
