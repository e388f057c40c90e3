"""Freed memory stays with the process: the next step's tensors need as much again.

As it comes, glibc gives large blocks back to the system as soon as they are free, and the next step gets the memory
page by page, each cleared first. Of the Penn Treebank's language model (logits of 16 MB at a batch of 20, 128 MB at
160) that was 0.1 and 0.4 of a step's time on two cores. The price: a process stays as large as it ever was.
"""

from __future__ import annotations

import ctypes
import os

from common.config.schema import RunConfig

# Numbers of parameters are those of glibc's malloc.h; values are in bytes but for the arenas.
_SETTINGS = (
    (-8, 1),  # M_ARENA_MAX: threads have heaps of 64 MiB otherwise; what does not fit into one is not kept.
    (-1, (1 << 31) - 1),  # M_TRIM_THRESHOLD: what is free at the heap's end is not given back.
    (-2, 1 << 26),  # M_TOP_PAD: the heap grows by so much at a time.
)
# M_MMAP_THRESHOLD: only blocks from here on are the system's and go back to it. The second is the most that glibc takes
# on 64 bits where HEAP_MAX_SIZE bounds it (malloc/malloc.c, do_set_mmap_threshold).
_MMAP_THRESHOLDS = ((-3, 1 << 30), (-3, 1 << 25))


def keep_freed() -> bool:
    """Sets glibc's allocator so; whether it did.

    It does nothing where there is another C library, or where the environment has settings of its own: `MALLOC_...`,
    `GLIBC_TUNABLES`, or another allocator in `LD_PRELOAD`.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ)
    if own or "malloc" in os.environ.get("GLIBC_TUNABLES", "") + os.environ.get("LD_PRELOAD", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # First, and nothing without it: each of the others stops glibc from raising the threshold by itself.
    return any(mallopt(*setting) for setting in _MMAP_THRESHOLDS) and all(mallopt(*s) for s in _SETTINGS)


def keep_freed_by_steps(config: RunConfig) -> None:
    """`keep_freed` where the steps of `config` run on this host's own processors.

    A host of accelerators holds no tensors of theirs, and the many threads of its input would share one heap.
    """
    import tensorflow as tf

    if config.replicas != "tpu" and not tf.config.list_physical_devices("GPU"):
        keep_freed()
