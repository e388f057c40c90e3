"""Selects the backend pjrt if the user names none and jax sees a GPU. TensorFlow-free."""

import dataclasses
from collections.abc import Callable, Sequence

from common.config.hardware import jax_gpus
from common.config.schema import RunConfig

# A run prints this first if it took pjrt by itself.
TAKEN = "replicas pjrt, since jax sees a GPU; --replicas=single takes TensorFlow's devices"


def choose(
    config: RunConfig,
    replicas: str | None,
    overrides: Sequence[tuple[str, str]],
    gpus: Callable[[], int] = jax_gpus,
) -> RunConfig:
    """Returns the configuration with the backend that suits this machine.

    Args:
      config: preset with overrides applied. A preset for another machine keeps its backend; so does one with
        compile=off.
      replicas, overrides: the backend and fields given on the command line; these stay.
      gpus: returns the number of GPUs that jax sees; called only if the backend may change.
    """
    fits = (config.hardware, config.replicas) == ("local", "single") and config.compile != "off"
    takes = fits and not is_set(replicas, overrides) and gpus()
    return dataclasses.replace(config, replicas="pjrt") if takes else config


def is_set(replicas: str | None, overrides: Sequence[tuple[str, str]]) -> bool:
    """Whether the command line names a backend, by --replicas or among the overrides [(path, value)]."""
    return replicas is not None or "replicas" in {path for path, _ in overrides}
