"""Evaluates a checkpoint: `python -m BENCHMARK --system=NAME --data_dir=DIR --evaluate=CHECKPOINT`.

Use it to choose among a run's checkpoints (`--keep_checkpoints`), or to evaluate them on data other than the run's
(`--config.data…=…`). Nothing is logged: a manual evaluation is not a result.
"""

import os
import pathlib

from common.errors import UserError
from common.train import checkpoint, checkpoint_file
from common.train.evaluation_pool import quality_explained
from common.train.probe import Probe
from common.train.programs import Programs
from common.train.task import Quality, Task
from timetotrain.run import allocator, same_start
from timetotrain.run.step_errors import steps_explained


def evaluate(task: Task, path: str | os.PathLike) -> Quality:
    """Evaluates a checkpoint's weights on the task's evaluation data, on the replicas of its configuration.

    Raises UserError if the checkpoint is missing, damaged or belongs to another network; the data are damaged; memory
    is too small; or the outputs do not add up.

    Args:
      task: its configuration has the network of the run that saved; batches, data and decoding may differ.
      path: a checkpoint file, or a folder, whose newest checkpoint is evaluated.

    Returns:
      The quality, as the run would have computed it.
    """
    task.check_input()
    task.check_data()
    allocator.keep_freed_by_steps(task.config)
    replicas = same_start.join_without_data(task.config)
    with steps_explained(replicas, "eval_batch_size", task.diagnose):
        programs = Programs(task, replicas)
        checkpoint.restore_weights(programs.state, _file(pathlib.Path(path)))
        sums, arrays = Probe(programs).evaluate()
        replicas.close()
    with quality_explained():
        return task.quality(sums, arrays)


def _file(path: pathlib.Path) -> pathlib.Path:
    paths = checkpoint_file.checkpoints(path) if os.path.isdir(path) else [path]
    if not paths or not os.path.isfile(paths[-1]):
        raise UserError(f"--evaluate={path}: no checkpoint there; name a checkpoint_*.npz, or its folder")
    return paths[-1]
