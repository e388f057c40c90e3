"""Makes glibc keep freed memory in the process, since the next step's tensors need the same amount again.

By default, glibc returns large blocks to the system as soon as they are free, and the next step gets them back page by
page, each cleared first. For the Penn Treebank language model (logits of 16 MB at a batch of 20, 128 MB at 160) this
costs 0.1 and 0.4 of a step's time on two cores. The price: a process never shrinks.
"""

import ctypes
import os

from common.config.schema import RunConfig

# (parameter number in glibc's malloc.h, value); values are in bytes, except the number of arenas.
_SETTINGS = (
    (-8, 1),  # M_ARENA_MAX: other arenas use 64 MiB heaps and do not keep larger blocks.
    (-1, (1 << 31) - 1),  # M_TRIM_THRESHOLD: never return free memory at the heap's end.
    (-2, 1 << 26),  # M_TOP_PAD: growth increment of the heap.
)
# M_MMAP_THRESHOLD: only blocks of at least this size go back to the system. The second value is the largest that
# 64-bit glibc accepts where HEAP_MAX_SIZE bounds it (malloc/malloc.c, do_set_mmap_threshold).
_MMAP_THRESHOLDS = ((-3, 1 << 30), (-3, 1 << 25))


def keep_freed() -> bool:
    """Sets glibc's allocator to keep freed memory; returns whether it succeeded.

    Does nothing with another C library, or if the environment configures an allocator: `MALLOC_...`, `GLIBC_TUNABLES`,
    or another allocator in `LD_PRELOAD`.
    """
    user_sets = any(name.startswith("MALLOC_") for name in os.environ)
    if user_sets or "malloc" in os.environ.get("GLIBC_TUNABLES", "") + os.environ.get("LD_PRELOAD", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Set the threshold first; if that fails, set nothing: every other setting stops glibc from raising it
    # automatically.
    return any(mallopt(*setting) for setting in _MMAP_THRESHOLDS) and all(mallopt(*s) for s in _SETTINGS)


def keep_freed_by_steps(config: RunConfig) -> None:
    """Calls `keep_freed` if the steps of `config` run on this host's CPUs.

    On a host with accelerators the tensors live elsewhere, and the input's many threads would share one heap.
    """
    import tensorflow as tf

    if config.replicas != "tpu" and not tf.config.list_physical_devices("GPU"):
        keep_freed()
