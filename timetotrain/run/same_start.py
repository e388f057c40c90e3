"""Compares what the processes of a run bring: configuration, flags, data, code and versions."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from common.config import benchmarks
from common.config import overrides as configs
from common.config.digest import to_dict
from common.config.schema import RunConfig
from common.distributed import alike, heartbeat
from common.distributed.process import current
from common.errors import NoAnswerError, UserError, answer
from timetotrain.run import data_folder
from timetotrain.run.options import RunOptions

# Flags that decide when the processes exchange; places on disks and what process 0 writes may differ.
_SHARED = ("checkpoint_minutes", "guard_steps", "profile_steps")


def check(replicas: Any, benchmark: str, task: Any, options: RunOptions) -> None:
    """Raises UserError in every process if one brings something else, or cannot read its data.

    Raises what a process raises, in this process; the others would wait for one that ended by itself.
    """
    from common.distributed.agreement import Agreement  # Needs TensorFlow.

    facts = {f"--{name}": str(getattr(options, name)) for name in _SHARED}
    facts["--checkpoint_dir"] = "given" if options.checkpoint_dir else "not given"
    try:
        data_folder.check(options.data_dir, benchmark)
        task.check_input()
        facts["the data"] = alike.of_sizes(task.data_files())
        facts = {**alike.of_config(to_dict(task.config)), **facts, **alike.of_machine()}
    except Exception as error:
        with contextlib.suppress(UserError):
            Agreement(replicas).refuse(*answer(error))
        raise
    Agreement(replicas).same(facts)


def join(config: RunConfig) -> Any:
    """Returns the backend of a configuration; from here on, a process that fails has no exchange of its own."""
    from common.distributed import replicas

    os.environ.pop(heartbeat.BACKEND_VARIABLE, None)
    return replicas.make(config)


def join_without_data(config: RunConfig) -> Any:
    """Returns the backend for what is no run. Raises UserError in every process if one refuses to start."""
    from common.distributed.agreement import Agreement

    replicas = join(config)
    Agreement(replicas).same({})
    return replicas


def needs_no_others(flag: str) -> None:
    """Raises UserError if other hosts wait for this process, whose `flag` asks for what one process does by itself."""
    if heartbeat.BACKEND_VARIABLE in os.environ:
        raise UserError(f"{flag}: one process answers it; leave out `timetotrain launch` and its flags")


def refuse(error: BaseException, num_replicas: int) -> None:
    """Tells the processes on other hosts, which wait for this one, why it does not start; there may be none.

    `num_replicas`: of all processes together; 0 if it is unknown.
    """
    (text, status), backend = answer(error), os.environ.pop(heartbeat.BACKEND_VARIABLE, "")
    if not backend or status >= 128 or isinstance(error, NoAnswerError):
        return
    from common.distributed.agreement import Agreement

    with contextlib.suppress(Exception):  # They do not start either, or the backend is what is wrong.
        print(f"error: {text}; telling the other hosts", file=sys.stderr, flush=True)
        Agreement(meet(backend, num_replicas)).refuse(text, status)


def meet(backend: str, num_replicas: int) -> Any:
    """Returns the backend of a launcher's processes without a run's configuration.

    `num_replicas`: the others', whose PJRT needs as many devices from each process; 0: one device from each.
    """
    from common.distributed import replicas

    processes = current().count
    if backend == "multiworker":
        from common.distributed.replicas.multiworker import MultiWorker

        count = processes * MultiWorker.devices_here()
    else:
        count = num_replicas if backend == "pjrt" and num_replicas % processes == 0 else 0
    return replicas.make(RunConfig(replicas=backend, num_replicas=count or processes))


def num_replicas(benchmark: str, command: Sequence[str]) -> int:
    """Returns how many replicas a benchmark's flags ask for, as far as they can be read; 0 if they cannot."""
    values = flags(command)
    number = values.get("config.num_replicas", "")
    if not number and "system" in values:
        with contextlib.suppress(Exception):  # What is wrong with the presets is said elsewhere.
            return configs.preset(
                benchmarks.module(benchmark, "presets").PRESETS, values["system"]
            ).num_replicas
    return int(number) if number.isdecimal() else 0


def flags(command: Sequence[str]) -> dict[str, str]:
    """Returns a command's flags, {name with underscores: value}, as --name=value or --name value; "" without one."""
    values: dict[str, str] = {}
    for word, after in zip(command, [*command[1:], "--"]):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values[name.replace("-", "_")] = value if equals or after.startswith("--") else after
    return values
