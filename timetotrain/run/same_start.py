"""Compares what the processes of a run bring: configuration, flags, data, code and versions."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from common.config.digest import to_dict
from common.config.schema import RunConfig
from common.distributed import alike, heartbeat
from common.distributed.process import current
from common.errors import NoAnswerError, UserError
from timetotrain.run import data_folder
from timetotrain.run.options import RunOptions

# Flags that decide when the processes exchange; places on disks and what process 0 writes may differ.
_SHARED = ("checkpoint_minutes", "guard_steps", "profile_steps")


def check(replicas: Any, benchmark: str, task: Any, options: RunOptions) -> None:
    """Raises UserError in every process if one brings something else, or cannot read its data.

    The others would wait for a process that ended by itself.
    """
    from common.distributed.agreement import Agreement  # Needs TensorFlow.

    facts = {f"--{name}": str(getattr(options, name)) for name in _SHARED}
    facts["--checkpoint_dir"] = "given" if options.checkpoint_dir else "not given"
    unreadable = None
    try:
        data_folder.check(options.data_dir, benchmark)
        task.check_input()
        facts["the data"] = alike.of_sizes(task.data_files())
    except UserError as error:
        unreadable, facts["the data"] = error, str(error)
    facts = {**alike.of_config(to_dict(task.config)), **facts, **alike.of_machine()}
    Agreement(replicas).same(facts)
    if unreadable:
        raise unreadable


def join(config: RunConfig) -> Any:
    """Returns the backend of a configuration; from here on, a process that fails has no exchange of its own."""
    from common.distributed import replicas

    heartbeat.take_backend()
    return replicas.make(config)


def join_without_data(config: RunConfig) -> Any:
    """Returns the backend for what is no run. Raises UserError in every process if one refuses to start."""
    from common.distributed.agreement import Agreement

    replicas = join(config)
    Agreement(replicas).same({})
    return replicas


def refuse(error: UserError) -> None:
    """Tells the processes on other hosts, which wait for this one, why it does not start; there may be none."""
    backend = heartbeat.take_backend()
    if not backend or error.exit_code >= 128 or isinstance(error, NoAnswerError):
        return
    from common.distributed.agreement import Agreement

    with contextlib.suppress(Exception):  # They do not start either, or the backend is what is wrong.
        print(f"error: {error}; telling the other hosts", file=sys.stderr, flush=True)
        Agreement(meet(backend, sys.argv)).refuse(str(error))


def meet(backend: str, words: Sequence[str] = ()) -> Any:
    """Returns the backend of a launcher's processes without a run's configuration.

    `words`: flags; the others' PJRT needs as many CPU devices from this process as from each of them.
    """
    import tensorflow as tf

    from common.distributed import replicas

    gpus = len(tf.config.list_physical_devices("GPU")) if backend == "multiworker" else 0
    count, flag = current().count * max(gpus, 1), "--config.num_replicas="
    if backend == "pjrt":
        values = [word.removeprefix(flag) for word in words if word.startswith(flag)]
        count = next((int(v) for v in values if v.isdecimal() and int(v) and int(v) % count == 0), count)
    return replicas.make(RunConfig(replicas=backend, num_replicas=count))
