"""What a person can act on, in place of what TensorFlow raises when a step fails."""

from __future__ import annotations

import contextlib
import functools
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


@contextlib.contextmanager
def steps_explained(replicas: Replicas, batch_field: str, diagnose: Diagnose | None = None) -> Iterator[None]:
    """Raises in place of an error of steps outside a run what a person can act on, as common/run/run.py does in one.

    Args:
      replicas: of the steps.
      batch_field: of the configuration, which makes the steps smaller.
      diagnose: the task's, where the steps read data.

    Raises:
      UserError: another process or memory is lacking, or `diagnose` found what is wrong. Other errors stay.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        found = explained(error, replicas, batch_field, diagnose, functools.partial(_say, replicas))
        if found is None:
            raise
        raise found from error


def _say(replicas: Replicas, text: str) -> None:
    if replicas.main:
        print(text, file=sys.stderr, flush=True)
