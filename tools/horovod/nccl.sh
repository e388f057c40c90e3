# Finds what a build of Horovod with NCCL needs. Sourced by build.sh, which defines `fail` and `python`.
#
# HOROVOD_GPU_OPERATIONS: NCCL builds with it or ends in one line; none builds without; not set: with it where all is
# there.
# HOROVOD_CUDA_HOME, HOROVOD_NCCL_HOME: the folders of the CUDA toolkit and of NCCL; else the usual places are searched.

# Sets `cuda_home` to the folder of a CUDA toolkit; "" where there is none.
find_toolkit() {
  local nvcc folder
  nvcc=$(command -v nvcc || true)
  cuda_home=
  nvcc=$(realpath "$nvcc" 2>/dev/null || true)
  for folder in "${HOROVOD_CUDA_HOME:-}" "${CUDA_HOME:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda; do
    [[ -x $folder/bin/nvcc && -f $folder/include/cuda_runtime.h ]] && { cuda_home=$folder; return; }
    [[ -n $folder && $folder == "${HOROVOD_CUDA_HOME:-}" ]] &&
      fail "HOROVOD_CUDA_HOME=$folder: no bin/nvcc and include/cuda_runtime.h in it; give a CUDA toolkit's folder"
  done
  return 0
}

# Sets `nccl_include` and `nccl_library` (a file) to NCCL's; "" where it is not installed.
find_nccl() {
  local home folder
  # The wheel nvidia-nccl-cu12 of tools/requirements/dev.lock: the library that TensorFlow itself loads.
  home=$("$python" -c 'import importlib.util as u; print(*u.find_spec("nvidia.nccl").submodule_search_locations)' \
    2>/dev/null || true)
  nccl_include= nccl_library=
  for folder in "${HOROVOD_NCCL_HOME:-}" "$home" /usr /usr/local; do
    # Debian has libraries one folder deeper.
    nccl_library=$(compgen -G "$folder/lib*/libnccl.so*" || compgen -G "$folder/lib/*/libnccl.so*" || true)
    nccl_library=${nccl_library%%$'\n'*} nccl_include=$folder/include
    [[ -n $folder && -n $nccl_library && -f $nccl_include/nccl.h ]] && return
    [[ -n $folder && $folder == "${HOROVOD_NCCL_HOME:-}" ]] &&
      fail "HOROVOD_NCCL_HOME=$folder: no include/nccl.h and lib/libnccl.so in it"
  done
  nccl_include= nccl_library=
}

# Prints NCCL's version, as in 2.32.3, from its header.
nccl_version() {
  sed -nE 's/^#define NCCL_(MAJOR|MINOR|PATCH) +([0-9]+).*/\2/p' "$nccl_include/nccl.h" | paste -sd.
}

# Decides `gpu` (NCCL or ""), and `without`, the reason for "".
choose_operations() {
  gpu= without=
  case ${HOROVOD_GPU_OPERATIONS-} in
    none) without="HOROVOD_GPU_OPERATIONS=none"; return ;;
    "" | NCCL) ;;
    *) fail "HOROVOD_GPU_OPERATIONS=$HOROVOD_GPU_OPERATIONS: only NCCL or none; MPI is not built" ;;
  esac
  find_toolkit
  find_nccl
  if [[ -z $nccl_library ]]; then without="NCCL is not installed; run make gpu-tf, or give HOROVOD_NCCL_HOME"
  elif [[ -z $cuda_home ]]; then without="no nvcc found; install a CUDA toolkit, or give HOROVOD_CUDA_HOME"; fi
  if [[ -z $without ]]; then
    gpu=NCCL
    cuda_version=$("$cuda_home/bin/nvcc" --version | sed -nE 's/.*release ([0-9.]+),.*/\1/p')
    # Compute capabilities that this nvcc compiles for: 70 is a V100's, which nvcc 13 has dropped.
    capabilities=$("$cuda_home/bin/nvcc" --list-gpu-arch | sed -nE 's/^compute_([0-9]+)$/\1/p' | sort -n | paste -sd,)
    local here
    here=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -n | head -n 1 || true)
    if [[ $here =~ ^[0-9]+$ && $here -lt ${capabilities%%,*} ]]; then
      fail "CUDA $cuda_version in $cuda_home makes no code for this node's GPUs (compute capability ${here%?}.${here: -1}); \
give an older toolkit's folder as HOROVOD_CUDA_HOME"
    fi
  elif [[ ${HOROVOD_GPU_OPERATIONS-} == NCCL ]]; then fail "HOROVOD_GPU_OPERATIONS=NCCL: $without"; fi
}

# Prints what the build sums with, in one line.
describe_operations() {
  if [[ -z $gpu ]]; then echo "horovod  Gloo on CPUs, nothing for GPUs: $without"; return; fi
  local v100="code for V100 included"
  [[ ,$capabilities, == *,70,* ]] || v100="no code for V100, which needs CUDA 12: give HOROVOD_CUDA_HOME"
  echo "horovod  Gloo on CPUs, NCCL $(nccl_version) on GPUs (allreduce, allgather, broadcast, alltoall, reducescatter);" \
    "CUDA $cuda_version, $v100"
}

# Sets the variables with which Horovod's CMake files find CUDA and NCCL; WORK: a folder for links.
export_nccl() {
  local work=$1
  mkdir -p "$work/nccl/lib"
  # The wheel lacks the name without a version, for which the linker looks.
  ln -sfn "$nccl_include" "$work/nccl/include"
  ln -sfn "$nccl_library" "$work/nccl/lib/libnccl.so"
  export HOROVOD_GPU=CUDA HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME=$cuda_home PATH=$cuda_home/bin:$PATH \
    HOROVOD_NCCL_HOME=$work/nccl HOROVOD_NCCL_INCLUDE=$work/nccl/include HOROVOD_NCCL_LIB=$work/nccl/lib \
    HOROVOD_NCCL_LINK=SHARED HOROVOD_BUILD_CUDA_CC_LIST=$capabilities
  # From site-packages/horovod/tensorflow to the wheel's folder. A $ must reach the linker.
  LDFLAGS+=' -Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib'
}
