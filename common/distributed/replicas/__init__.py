"""Backends, one class per engine behind `base.Replicas`; no other code knows about other replicas."""

import importlib

from common.config.schema import RunConfig
from common.config.validation import check_backend
from common.distributed.replicas.base import Replicas

# The class in each backend's module.
_CLASSES = {
    "single": "Single",
    "mirrored": "Mirrored",
    "horovod": "Horovod",
    "multiworker": "MultiWorker",
    "pjrt": "Pjrt",
    "tpu": "Tpu",
}


def make(config: RunConfig) -> Replicas:
    """Returns the backend that a configuration names.

    Raises UserError as `check_backend` does, or if the machine has fewer devices than replicas; or the launcher started
    another number of processes.
    """
    check_backend(config)
    module = importlib.import_module(f"{__name__}.{config.replicas}")
    return getattr(module, _CLASSES[config.replicas])(config.num_replicas)
