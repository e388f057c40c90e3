"""Compares what the processes of a run bring: configuration, flags, data, code and versions."""

from typing import Any

from common.config.digest import to_dict
from common.distributed import alike
from common.errors import UserError
from timetotrain.run import request
from timetotrain.run.options import RunOptions

# Flags that decide when the processes exchange; places on disks and what process 0 writes may differ.
_SHARED = ("checkpoint_minutes", "guard_steps", "profile_steps")


def check(replicas: Any, benchmark: str, task: Any, options: RunOptions) -> None:
    """Raises UserError in every process if one brings something else, or cannot read its data.

    The others would wait for a process that ended by itself.
    """
    from common.distributed.agreement import (
        Agreement,  # Needs TensorFlow, which refusals before this do without.
    )

    facts = {f"--{name}": str(getattr(options, name)) for name in _SHARED}
    facts["--checkpoint_dir"] = "given" if options.checkpoint_dir else "not given"
    unreadable = None
    try:
        request.check_data_dir(options.data_dir, benchmark)
        task.check_input()
        facts["the data"] = alike.of_sizes(task.data_files())
    except UserError as error:
        unreadable, facts["the data"] = error, str(error)
    facts = {**alike.of_config(to_dict(task.config)), **facts, **alike.of_machine()}
    Agreement(replicas).same(facts)
    if unreadable:
        raise unreadable
