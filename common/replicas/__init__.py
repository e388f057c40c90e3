"""The only code that knows there are other replicas: one class per engine behind `base.Replicas`."""

from __future__ import annotations

from common.config import RunConfig
from common.replicas.base import Replicas, UnsupportedError


def make(config: RunConfig) -> Replicas:
    """The backend a configuration names.

    Raises:
      UnsupportedError: a backend this version does not have.
      UserError: the machine has fewer devices than replicas.
    """
    if config.replicas == "single":
        if config.num_replicas != 1:
            raise UnsupportedError(
                f"config.num_replicas={config.num_replicas}: the backend single has one; "
                "use --config.replicas=mirrored, or --config.num_replicas=1"
            )
        from common.replicas.single import Single

        return Single()
    if config.replicas == "mirrored":
        from common.replicas.mirrored import Mirrored

        return Mirrored(config.num_replicas)
    raise UnsupportedError(
        f"config.replicas={config.replicas}: not available in this version; "
        "use --config.replicas=single or mirrored (and --config.num_replicas)"
    )
