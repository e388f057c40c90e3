"""Checks for a preset's GPUs before the clock starts: a run without them fails in one line, not slowly on the CPU."""

import os
import pathlib
import re

from common import machine_tools
from common.config import hardware
from common.config.schema import RunConfig
from common.errors import UserError
from timetotrain.launch import commands

_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
# TensorFlow's variables, and their copy while programs compile (common/train/programs.py).
_HOST_COPIES = 2
# With pjrt one variable at a time is on the host, in up to three copies: Llama 3.1 8B's largest is a fifteenth of its
# weights, which are a third of its state.
_HOST_PART = 3 / 45
# Memory of a step on one GPU as a multiple of weights and slots: 135.3 GB to 96.4 GB (docs/gpu.md), without workspace.
_STEP = 1.404
_SHARE, _LARGEST_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.98
_GO_ON = "--allow_cpu trains without"
# Per kind of device: the packages, one of which must provide jax's runtime, and what installs it.
_RUNTIMES = {
    "NVIDIA": (("jax-cuda13-plugin", "jax-cuda12-plugin"), "run `make gpu`"),
    "TPU": (("libtpu",), "pip install 'jax[tpu]' of jax's version here"),
}


def check(config: RunConfig, driver: pathlib.Path = _DRIVER) -> None:
    """Checks that this process sees the GPUs that its replicas need.

    Raises UserError if TensorFlow sees fewer GPUs than this host's processes need, Horovod is built without NCCL, or
    jax lacks a runtime for the machine's devices or sees no GPU.

    Args:
      config: `hardware` names the machine's description, systems/*.json; "local" and TPUs are not checked.
      driver: file in which the NVIDIA driver states its version.
    """
    accelerator = commands.describe(config.hardware).get("accelerator_model_name", "")
    if config.replicas == "pjrt":
        _check_jax(config, accelerator)
        return
    if "NVIDIA" not in accelerator or config.replicas == "tpu":
        return
    import tensorflow as tf

    needed, visible = needed_here(config), len(tf.config.list_physical_devices("GPU"))
    if visible < needed:
        raise UserError(
            f"config.hardware={config.hardware}: this host's processes need {needed} GPUs ({accelerator}), TensorFlow "
            f"sees {visible}: {_why(driver) if not visible else 'start fewer processes here'}; {_GO_ON}"
        )
    if config.replicas == "horovod" and config.num_replicas > 1:
        import horovod.tensorflow as hvd

        if not hvd.nccl_built():
            raise UserError(
                "--replicas=horovod: Horovod is built without NCCL, so gradients would go through the CPUs; run "
                "`HOROVOD_GPU_OPERATIONS=NCCL tools/horovod/build.sh` where CUDA's toolkit and NCCL are; --allow_cpu "
                "sums through the CPUs"
            )


def _check_jax(config: RunConfig, accelerator: str) -> None:
    """Checks that jax has a runtime for the machine's devices and sees GPUs; otherwise jax would use the CPU."""
    for kind, (packages, fix) in _RUNTIMES.items():
        if kind in accelerator and not machine_tools.versions(*packages):
            raise UserError(
                f"config.hardware={config.hardware}: jax has no runtime for its devices ({accelerator}) here; {fix}; "
                f"{_GO_ON}"
            )
    if "NVIDIA" in accelerator and not hardware.jax_gpus():
        raise UserError(
            f"config.hardware={config.hardware}: jax sees no GPU ({accelerator}) here: nvidia-smi lists none, or a GPU "
            "or driver too old for jax's CUDA (`make gpu CUDA=12`), or a variable hides them; "
            f"{_GO_ON}"
        )


def check_memory(config: RunConfig) -> None:
    """Checks that this host's memory, and a single GPU's, hold a large network. Does not import TensorFlow.

    Raises UserError if they do not, or jax may not use enough of the GPU's.
    """
    in_parts = config.replicas == "pjrt"
    copies = _HOST_PART if in_parts else _HOST_COPIES
    need, memory = copies * config.state_bytes, hardware.host_memory()
    if need > memory:
        fix = "use a larger host, or raise the control group's limit"
        raise UserError(
            f"config.system={config.system}: weights and slots take {config.state_bytes / 1e9:.0f} GB, of which a run "
            f"holds up to {need / 1e9:.0f} GB in this host's memory, but it has {memory / 1e9:.0f} GB; {fix}"
            + ("" if in_parts else ", or take --config.replicas=pjrt, which holds one variable at a time")
        )
    if not config.state_bytes or config.replicas != "pjrt" or config.num_replicas > 1:
        return
    step, gpu = _STEP * config.state_bytes, hardware.jax_gpu_memory()
    share = _share_of_gpu()
    if gpu and step > share * gpu:
        fix = (
            f"set {_SHARE}={_LARGEST_SHARE}" if step <= _LARGEST_SHARE * gpu else "use a GPU with more memory"
        )
        raise UserError(
            f"config.system={config.system}: a step takes {step / 1e9:.0f} GB on the GPU, jax takes {share:g} of its "
            f"{gpu / 1e9:.0f} GB; {fix}"
        )


def _share_of_gpu() -> float:
    """Returns the share of a GPU's memory that jax takes (docs.jax.dev, "GPU memory allocation")."""
    text = os.environ.get(_SHARE, "").strip()
    try:
        return float(text) if text else 0.75
    except ValueError:
        raise UserError(
            f"{_SHARE}={text}: not a number; set it to a share such as {_LARGEST_SHARE}"
        ) from None


def needed_here(config: RunConfig) -> int:
    """Returns how many GPUs this process must see for its host's replicas."""
    if config.replicas == "mirrored":
        return config.num_replicas
    if config.replicas == "multiworker":
        return 1  # The strategy uses every GPU that a process sees.
    # A scheduler that binds each process to a GPU hides the others.
    bound = re.fullmatch(r"\d+|GPU-[\w-]+", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return 1 if bound else int(os.environ.get("HOROVOD_LOCAL_SIZE", "1"))


def _why(driver: pathlib.Path) -> str:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides them; unset it"
    import tensorflow as tf

    built = tf.sysconfig.get_build_info()
    if not built.get("is_cuda_build"):
        return "TensorFlow is built without CUDA; run `make gpu-tf`"
    try:
        version = re.search(r"\s(\d+\.[\d.]+)\s", driver.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return "no NVIDIA driver is loaded; choose a preset of this machine, or --system=here"
    cuda, cudnn = built.get("cuda_version", "?"), built.get("cudnn_version", "?")
    return (
        f"the driver is {version[1] if version else 'unknown'}, TensorFlow is built for CUDA {cuda} and cuDNN {cudnn}; "
        "run `make gpu-tf` for these libraries, or install a newer driver"
    )
