#!/usr/bin/env bash
# Builds Horovod 0.28.1, the last release, against the TensorFlow of an environment, and installs it there.
#
# Usage: tools/horovod/build.sh [PYTHON]     PYTHON: of the environment that holds TensorFlow; .venv/bin/python if absent
#
# A pip extra cannot do this: the build needs TensorFlow installed, and pip's cache keys a wheel by Horovod's version
# alone, though it works only with the TensorFlow it was built against. Wheels are kept in .cache/wheels/, by the
# versions of TensorFlow and Python. A build takes two minutes on two cores, an installation from a kept wheel seconds.
#
# With NCCL where the environment has it (make gpu-tf) and a CUDA toolkit is found: nccl.sh says where it looks, and which
# variables choose. Horovod's other variables are passed on.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=$(realpath -s "${1:-$root/.venv/bin/python}")

fail() { echo "error: horovod: $1" >&2; exit 2; }

source "$here/nccl.sh"

[[ -x $python ]] || fail "no $python; run make setup first, or name the environment's Python"
key=$(TF_CPP_MIN_LOG_LEVEL=3 "$python" -c 'import sys, tensorflow as tf
print("tf{}-cp{}{}-{}".format(tf.__version__, *sys.version_info[:2], sys.platform))' 2>/dev/null) ||
  fail "$python cannot import tensorflow; run make setup first"
# The key includes the patch's checksum, so that another patch gives another wheel.
key+=-p$(cksum <"$here/process_sets.patch" | cut -d' ' -f1)
choose_operations
[[ -n $gpu ]] && key+=-nccl$(nccl_version)-cuda$cuda_version-p$(cksum <"$here/nccl.patch" | cut -d' ' -f1)
wheels=$root/.cache/wheels/horovod-$key
uv=$(command -v uv || true)

install() {  # ARGS...: pip's or uv's `install`
  if [[ -n $uv ]]; then "$uv" pip install -q --python "$python" "$@"
  else "$python" -m pip install -q --disable-pip-version-check "$@"; fi
}

# Horovod includes these headers on a CPU too, where it uses nothing of them; they would draw in the whole of XLA, and
# TensorFlow 2.20 has those of compiler/xla elsewhere.
write_headers() {  # FOLDER
  local header source
  while read -r header source; do
    mkdir -p "$1/tensorflow/compiler/${header%/*}"
    printf '#if HAVE_GPU\n%s\n#endif\n' "$source" >"$1/tensorflow/compiler/$header"
  done <<'HEADERS'
tf2xla/xla_op_kernel.h #include_next <tensorflow/compiler/tf2xla/xla_op_kernel.h>
tf2xla/xla_op_registry.h #include_next <tensorflow/compiler/tf2xla/xla_op_registry.h>
xla/client/xla_builder.h #include <xla/hlo/builder/xla_builder.h>
xla/service/custom_call_target_registry.h #include <xla/service/custom_call_target_registry.h>
xla/service/hlo.pb.h #include <xla/service/hlo.pb.h>
xla/shape.h #include <xla/shape.h>
xla/xla_data.pb.h #include <xla/xla_data.pb.h>
HEADERS
}

build() (
  local tool work=$root/.cache/horovod-build
  for tool in g++ make patch tar; do
    command -v "$tool" >/dev/null || fail "$tool is missing; install it (on Debian: apt-get install g++ make patch tar)"
  done
  echo "building Horovod for $key (once, about two minutes on two cores)" >&2
  rm -rf "$work"
  mkdir -p "$work"/{out,source} "$wheels"
  # The tools include pip, because an environment made by uv has none.
  install --target "$work/tools" cmake==4.4.4 pip==25.3 setuptools==84.2.1 wheel==0.48.0
  write_headers "$work/include"
  export PATH=$work/tools/bin:$PATH PYTHONPATH=$work/tools${PYTHONPATH:+:$PYTHONPATH}
  LDFLAGS="-Wl,-s ${LDFLAGS:-}"
  if [[ -n $gpu ]]; then export_nccl "$work"; else unset HOROVOD_GPU_OPERATIONS; fi
  # MPI is off: neither Gloo, which Horovod bundles, nor NCCL needs it. -Wl,-s strips the library from 15 MB to 1 MB.
  export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 \
    HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 \
    CXXFLAGS="-I$work/include ${CXXFLAGS:-}" LDFLAGS MAKEFLAGS=-j$(nproc) \
    CMAKE_POLICY_VERSION_MINIMUM=3.5
  local pip=("$python" -m pip --disable-pip-version-check)
  {
    "${pip[@]}" download --no-build-isolation --no-cache-dir --no-deps --no-binary horovod \
      -d "$work" -r "$here/requirements.txt" &&
      tar -xzf "$work"/horovod-*.tar.gz -C "$work/source" --strip-components=1 &&
      patch -d "$work/source" -p1 <"$here/process_sets.patch" &&
      { [[ -z $gpu ]] || patch -d "$work/source" -p1 <"$here/nccl.patch"; } &&
      nice "${pip[@]}" wheel --no-build-isolation --no-cache-dir --no-deps -w "$work/out" "$work/source"
  } >"$work/log.txt" 2>&1 ||
    { tail -n 20 "$work/log.txt" >&2; fail "the build failed; all of it: $work/log.txt"; }
  mv "$work"/out/horovod-*.whl "$wheels/"
  rm -rf "$work"
)

compgen -G "$wheels/horovod-*.whl" >/dev/null || build
# Horovod's imports that the extra `train` lacks, in the versions of tools/requirements/dev.lock.
install cloudpickle==3.1.2 psutil==7.2.2
if [[ -n $uv ]]; then install --no-deps --reinstall "$wheels"/horovod-*.whl
else install --no-deps --force-reinstall "$wheels"/horovod-*.whl; fi
"$python" -c 'import sys, horovod.tensorflow as hvd; sys.exit(len(sys.argv) > 1 and not hvd.nccl_built())' $gpu 2>/dev/null ||
  fail "the wheel in $wheels does not load; remove that folder and build again"
describe_operations >&2
