"""Tells whether XLA compiles the function being traced, for layers that have another form there."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from common.distributed.replicas.base import Replicas
from common.optim.products import under_xla

_PLAIN = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def plain_forms() -> Iterator[None]:
    """Layers that are traced meanwhile take the forms of published programs, which read and write more."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def saves_passes() -> bool:
    """Whether a layer takes the form that XLA compiles to the fewest passes over its tensors."""
    return under_xla() and not _PLAIN.get()


def for_gpu(replicas: Replicas) -> bool:
    """Whether XLA compiles the graph under construction for NVIDIA GPUs, as far as the backend knows its devices."""
    return under_xla() and "NVIDIA" in replicas.platform
