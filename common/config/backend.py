"""Takes the backend pjrt where nobody names one and jax sees a GPU. TensorFlow-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from common.config.hardware import jax_gpus
from common.config.schema import RunConfig

# A run says it in its first line.
TAKEN = "replicas pjrt, since jax sees a GPU; --replicas=single takes TensorFlow's devices"


def chosen(
    config: RunConfig,
    replicas: str | None,
    overrides: Sequence[tuple[str, str]],
    gpus: Callable[[], int] = jax_gpus,
) -> RunConfig:
    """Returns the configuration with the backend that suits this machine.

    Args:
      config: of a preset and the overrides. A preset of another machine keeps its backend, as does one that compiles
        nothing.
      replicas, overrides: the backend and the fields that the command line gives; these stay.
      gpus: returns how many GPUs jax sees; not asked where the backend stays.
    """
    fits = (config.hardware, config.replicas) == ("local", "single") and config.compile != "off"
    return (
        dataclasses.replace(config, replicas="pjrt")
        if fits and not given(replicas, overrides) and gpus()
        else config
    )


def given(replicas: str | None, overrides: Sequence[tuple[str, str]]) -> bool:
    """Whether a command line names a backend: by --replicas, or among the overrides [(path, value)]."""
    return replicas is not None or "replicas" in {path for path, _ in overrides}
