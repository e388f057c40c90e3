"""Makes glibc keep freed memory in the process, since the next step's tensors need as much again.

By default, glibc returns large blocks to the system as soon as they are free, and the next step gets the memory page by
page, each cleared first. With the Penn Treebank's language model (logits of 16 MB at a batch of 20, 128 MB at 160) this
takes 0.1 and 0.4 of a step's time on two cores. The price: a process never shrinks.
"""

from __future__ import annotations

import ctypes
import os

from common.config.schema import RunConfig

# (parameter's number in glibc's malloc.h, value); values are in bytes, except for the number of arenas.
_SETTINGS = (
    (
        -8,
        1,
    ),  # M_ARENA_MAX: other arenas have heaps of 64 MiB, and a block that does not fit into one is not kept.
    (-1, (1 << 31) - 1),  # M_TRIM_THRESHOLD: free memory at the heap's end is not returned.
    (-2, 1 << 26),  # M_TOP_PAD: the heap grows by so much at a time.
)
# M_MMAP_THRESHOLD: only blocks from this size on go back to the system. The second value is the largest that 64-bit
# glibc takes where HEAP_MAX_SIZE bounds it (malloc/malloc.c, do_set_mmap_threshold).
_MMAP_THRESHOLDS = ((-3, 1 << 30), (-3, 1 << 25))


def keep_freed() -> bool:
    """Sets glibc's allocator to keep freed memory; returns whether it could.

    Does nothing where the C library is another one, or where the environment has settings of its own: `MALLOC_...`,
    `GLIBC_TUNABLES`, or another allocator in `LD_PRELOAD`.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ)
    if own or "malloc" in os.environ.get("GLIBC_TUNABLES", "") + os.environ.get("LD_PRELOAD", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # The threshold first, and nothing where it fails: each other setting stops glibc from raising it by itself.
    return any(mallopt(*setting) for setting in _MMAP_THRESHOLDS) and all(mallopt(*s) for s in _SETTINGS)


def keep_freed_by_steps(config: RunConfig) -> None:
    """Calls `keep_freed` where the steps of `config` run on this host's own processors.

    A host of accelerators does not hold their tensors, and the many threads of its input would share one heap.
    """
    import tensorflow as tf

    if config.replicas != "tpu" and not tf.config.list_physical_devices("GPU"):
        keep_freed()
