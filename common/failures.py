"""What a person can act on, in place of what TensorFlow raises when a step fails."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from common.errors import PeerLostError, UserError
from common.replicas.base import Replicas

Diagnose = Callable[[tf.errors.OpError], UserError | None]


def explained(
    error: BaseException,
    replicas: Replicas | None,
    batch_field: str,
    diagnose: Diagnose | None,
    say: Callable[[str], None],
) -> UserError | None:
    """The error to raise in place of `error`; None where nothing better is known.

    Args:
      error: of the steps.
      replicas: that took them; None before there were any.
      batch_field: of the configuration, which makes the steps smaller.
      diagnose: the task's, where the steps read data: it may take minutes.
      say: tells a person so.
    """
    if replicas is not None and replicas.peer_lost(error):
        return PeerLostError()
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return UserError(f"out of memory; use a smaller --config.{batch_field}, or more replicas", 1)
    if diagnose is None or not isinstance(error, tf.errors.OpError):
        return None
    say("a step failed: looking for damaged data")
    return diagnose(error)
