"""Wraps a launcher's command in a container: docker, apptainer, or SLURM's pyxis. TensorFlow-free.

A container sees the folder where the command starts, under the same name, and the folders that the run's flags name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from common.errors import UserError

RUNTIMES = ("docker", "apptainer", "pyxis")
# Flags of a run whose value is a folder or file on the host.
PATH_FIELDS = ("init", "backbone", "initial_weights")  # Fields of a configuration.
_PATHS = (
    *("data_dir", "result_dir", "checkpoint_dir", "init", "evaluate", "export"),
    *(f"config.{name}" for name in PATH_FIELDS),
)
# What `docker stop` waits from SIGTERM to SIGKILL: the launcher's --grace_seconds, and time to end.
STOP_SECONDS = 90
PYTHON = "python"  # In the images of tools/containers/, whose environment is on the PATH.


def runtime(name: str, launcher: str) -> str:
    """Returns the container runtime for a launcher; "auto" selects the launcher's usual one.

    Raises UserError if the launcher cannot start that kind of container.
    """
    if name == "auto":
        return {"slurm": "pyxis", "mpirun": "apptainer"}.get(launcher, "docker")
    fits = {"slurm": ("pyxis", "apptainer"), "mpirun": ("apptainer",), "tpu-vm": ("docker",)}
    allowed = fits.get(launcher, ("docker", "apptainer"))
    if name not in allowed:
        raise UserError(
            f"--container_runtime={name}: LAUNCHER={launcher} starts {' or '.join(allowed)}; use that"
        )
    return name


def mounts(flags: Sequence[str], folder: str) -> list[str]:
    """Returns the host folders that a run needs: `folder`, where it starts, and those outside that its flags name.

    Flags are as --data_dir=DIR or --data_dir DIR; addresses such as gs://... do not count as folders.
    """
    folders = [folder]
    for i, flag in enumerate(flags):
        name, equals, value = flag.lstrip("-").partition("=")
        value = value if equals else "".join(flags[i + 1 : i + 2])
        names_path = flag.startswith("-") and name in _PATHS and "://" not in value
        if not names_path or value[:1] in ("", "-"):
            continue
        path = os.path.join(folder, value)
        path = path if name.endswith("_dir") else os.path.dirname(path)
        path = os.path.normpath(path)
        if not any(path == one or path.startswith(one.rstrip("/") + "/") for one in folders):
            folders.append(path)
    return folders


def words(
    name: str, image: str, folders: Sequence[str], nvidia: bool, environment: Mapping[str, str]
) -> list[str]:
    """Returns the command prefix that runs a command in a container; for pyxis, options of srun.

    The container sees `folders` (the command starts in the first) and, with `nvidia`, the host's GPUs. It
    gets the variables of `environment`; apptainer and pyxis pass all variables anyway.
    """
    if name == "pyxis":
        binds = ",".join(f"{one}:{one}" for one in folders)
        return [
            f"--container-image={image}",
            f"--container-mounts={binds}",
            f"--container-workdir={folders[0]}",
        ]
    if name == "apptainer":
        binds = [f"--bind={one}" for one in folders]
        return ["apptainer", "exec", *(["--nv"] if nvidia else []), *binds, f"--pwd={folders[0]}", image]
    # Share the host's network (for the rendezvous) and shared memory (for NCCL). The user owns the files.
    line = ["docker", "run", "--rm", "--init", f"--stop-timeout={STOP_SECONDS}", "--network=host"]
    line += ["--ipc=host", "--ulimit=memlock=-1"]
    line += ["--gpus=all"] if nvidia else []
    line += [f"--user={os.getuid()}:{os.getgid()}"]
    line += [f"--volume={one}:{one}" for one in folders]
    return [*line, f"--workdir={folders[0]}", *(f"--env={each}" for each in sorted(environment)), image]
