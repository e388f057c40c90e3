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
    if config.replicas == "single":
        from common.distributed.replicas.single import Single

        return Single()
    if config.replicas == "mirrored":
        from common.distributed.replicas.mirrored import Mirrored

        return Mirrored(config.num_replicas)
    if config.replicas == "horovod":
        from common.distributed.replicas.horovod import Horovod

        return Horovod(config.num_replicas)
    if config.replicas == "multiworker":
        from common.distributed.replicas.multiworker import MultiWorker

        return MultiWorker(config.num_replicas)
    if config.replicas == "pjrt":
        from common.distributed.replicas.pjrt import Pjrt

        return Pjrt(config.num_replicas)
    from common.distributed.replicas.tpu import Tpu

    return Tpu(config.num_replicas)
