"""Tests what a build of Horovod decides before it begins, with folders in place of CUDA and NCCL."""

import pathlib
import subprocess
import sys

import pytest

from tests.benchmarks import ROOT

SCRIPT = """
fail() { echo "error: horovod: $1" >&2; exit 2; }
python=$1
source tools/horovod/nccl.sh
choose_operations
describe_operations
[[ -z $gpu ]] || { export_nccl "$2"; env; }
"""
NVCC = """#!/bin/sh
case $1 in
--version) echo "Cuda compilation tools, release %s, V%s.88" ;;
--list-gpu-arch) printf "compute_%%s\\n" %s ;;
esac
"""


def toolkit(folder: pathlib.Path, version: str = "12.9", capabilities: str = "50 70 80 90") -> pathlib.Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "include" / "cuda_runtime.h").touch()
    (folder / "bin" / "nvcc").write_text(NVCC % (version, version, capabilities))
    (folder / "bin" / "nvcc").chmod(0o755)
    return folder


def nccl(folder: pathlib.Path) -> pathlib.Path:
    (folder / "include").mkdir(parents=True)
    (folder / "lib").mkdir()
    lines = [f"#define NCCL_{part} {number}" for part, number in (("MAJOR", 2), ("MINOR", 32), ("PATCH", 3))]
    (folder / "include" / "nccl.h").write_text("\n".join(lines) + "\n")
    (folder / "lib" / "libnccl.so.2").touch()
    return folder


def decide(tmp_path: pathlib.Path, path: str = "", **environment: str) -> subprocess.CompletedProcess:
    """Runs the decision with the variables given, and no toolkit but those."""
    command = ["bash", "-euo", "pipefail", "-c", SCRIPT, "bash", sys.executable, str(tmp_path / "work")]
    environment = {"PATH": f"{path}:/usr/bin:/bin", **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_with_a_toolkit_and_nccl_it_is_built_in(tmp_path: pathlib.Path) -> None:
    cuda, home = toolkit(tmp_path / "cuda"), nccl(tmp_path / "nccl")
    done = decide(tmp_path, HOROVOD_CUDA_HOME=str(cuda), HOROVOD_NCCL_HOME=str(home))
    assert done.returncode == 0, done.stderr
    first, *variables = done.stdout.splitlines()
    assert first == (
        "horovod  Gloo on CPUs, NCCL 2.32.3 on GPUs (allreduce, allgather, broadcast, alltoall, reducescatter); "
        "CUDA 12.9, code for V100 included"
    )
    by_name = dict(line.split("=", 1) for line in variables if "=" in line)
    assert (by_name["HOROVOD_GPU"], by_name["HOROVOD_GPU_OPERATIONS"]) == ("CUDA", "NCCL")
    assert by_name["HOROVOD_NCCL_LINK"] == "SHARED" and by_name["HOROVOD_BUILD_CUDA_CC_LIST"] == "50,70,80,90"
    # The linker finds the library under the name that a wheel lacks.
    linked = pathlib.Path(by_name["HOROVOD_NCCL_LIB"]) / "libnccl.so"
    assert linked.resolve() == home / "lib" / "libnccl.so.2"
    assert by_name["PATH"].startswith(f"{cuda}/bin:")


def test_cuda_13_has_no_code_for_a_v100(tmp_path: pathlib.Path) -> None:
    cuda, home = toolkit(tmp_path / "cuda", "13.0", "75 80 90"), nccl(tmp_path / "nccl")
    done = decide(tmp_path, HOROVOD_CUDA_HOME=str(cuda), HOROVOD_NCCL_HOME=str(home))
    assert "CUDA 13.0, no code for V100, which needs CUDA 12: give HOROVOD_CUDA_HOME" in done.stdout


def test_a_node_of_v100_refuses_cuda_13(tmp_path: pathlib.Path) -> None:
    cuda, home = toolkit(tmp_path / "cuda", "13.0", "75 80 90"), nccl(tmp_path / "nccl")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf '7.0\\n7.0\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    variables = {"HOROVOD_CUDA_HOME": str(cuda), "HOROVOD_NCCL_HOME": str(home)}
    done = decide(tmp_path, str(tmp_path), **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: horovod: CUDA 13.0 in {cuda} makes no code for this node's GPUs (compute capability 7.0); give an "
        "older toolkit's folder as HOROVOD_CUDA_HOME\n"
    )


@pytest.mark.parametrize(
    "variables, message",
    [
        (
            {"HOROVOD_GPU_OPERATIONS": "MPI"},
            "HOROVOD_GPU_OPERATIONS=MPI: only NCCL or none; MPI is not built",
        ),
        (
            {"HOROVOD_CUDA_HOME": "/nowhere"},
            "HOROVOD_CUDA_HOME=/nowhere: no bin/nvcc and include/cuda_runtime.h in it; give a CUDA toolkit's folder",
        ),
        (
            {"HOROVOD_NCCL_HOME": "/nowhere"},
            "HOROVOD_NCCL_HOME=/nowhere: no include/nccl.h and lib/libnccl.so in it",
        ),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: pathlib.Path, variables: dict, message: str) -> None:
    done = decide(tmp_path, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: horovod: {message}\n")
    assert list(tmp_path.iterdir()) == []


def test_without_nccl_it_says_so(tmp_path: pathlib.Path) -> None:
    cuda = str(toolkit(tmp_path / "cuda"))
    done = decide(tmp_path, HOROVOD_CUDA_HOME=cuda)
    if "NCCL 2" in done.stdout:
        pytest.skip("this environment or this system has NCCL")
    why = "NCCL is not installed; run make gpu-tf, or give HOROVOD_NCCL_HOME"
    assert done.stdout == f"horovod  Gloo on CPUs, nothing for GPUs: {why}\n"
    run = decide(tmp_path, HOROVOD_CUDA_HOME=cuda, HOROVOD_GPU_OPERATIONS="NCCL")
    assert (run.returncode, run.stderr) == (2, f"error: horovod: HOROVOD_GPU_OPERATIONS=NCCL: {why}\n")


def test_none_builds_without_it(tmp_path: pathlib.Path) -> None:
    done = decide(tmp_path, HOROVOD_GPU_OPERATIONS="none", HOROVOD_NCCL_HOME=str(nccl(tmp_path / "nccl")))
    assert done.stdout == "horovod  Gloo on CPUs, nothing for GPUs: HOROVOD_GPU_OPERATIONS=none\n"
