"""Backends, one class per engine behind `base.Replicas`; no other code knows about other replicas."""

from common.config.schema import RunConfig
from common.config.validation import check_backend
from common.distributed.replicas.base import Replicas


def make(config: RunConfig) -> Replicas:
    """Returns the backend that a configuration names.

    Raises UserError as `check_backend` does, or if the machine has fewer devices than replicas; or the launcher started
    another number of processes.
    """
    check_backend(config)
    match config.replicas:
        case "single":
            from common.distributed.replicas.single import Single as Backend
        case "mirrored":
            from common.distributed.replicas.mirrored import Mirrored as Backend
        case "horovod":
            from common.distributed.replicas.horovod import Horovod as Backend
        case "multiworker":
            from common.distributed.replicas.multiworker import MultiWorker as Backend
        case "pjrt":
            from common.distributed.replicas.pjrt import Pjrt as Backend
        case _:
            from common.distributed.replicas.tpu import Tpu as Backend
    return Backend(config.num_replicas)
