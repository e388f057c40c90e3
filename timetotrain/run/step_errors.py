"""Translates TensorFlow's and jax's errors in failed steps into errors that the user can act on."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import tensorflow as tf

from common.distributed.replicas.base import Replicas
from common.errors import PeerLostError, UserError

Diagnose = Callable[[tf.errors.OpError], UserError | None]


def explained(
    error: BaseException,
    replicas: Replicas | None,
    batch_field: str,
    diagnose: Diagnose | None,
    say: Callable[[str], None],
) -> UserError | None:
    """Returns the error to raise instead of `error` of the steps; None if there is no better explanation.

    `replicas` is None before the backend exists; `batch_field` makes the steps smaller; `diagnose` is `Task.diagnose`,
    if the steps read data, and may take minutes.
    """
    if replicas is not None and replicas.peer_lost(error):
        return PeerLostError()
    if isinstance(error, tf.errors.ResourceExhaustedError) or str(error).startswith("RESOURCE_EXHAUSTED"):
        return UserError(f"out of memory; use a smaller --config.{batch_field}, or more replicas", 1)
    if diagnose is None or not isinstance(error, tf.errors.OpError):
        return None
    say("a step failed: looking for damaged data")
    return diagnose(error)


@contextlib.contextmanager
def steps_explained(replicas: Replicas, batch_field: str, diagnose: Diagnose | None = None) -> Iterator[None]:
    """Explains errors of steps outside a run, as timetotrain/run/run.py does inside one.

    Raises UserError if another process is lost, memory is too small, or `diagnose` found the cause. Other errors
    propagate.
    """

    def say(text: str) -> None:
        if replicas.main:
            print(text, file=sys.stderr, flush=True)

    try:
        yield
    except UserError:
        raise
    except Exception as error:
        better = explained(error, replicas, batch_field, diagnose, say)
        if better is None:
            raise
        raise better from error
