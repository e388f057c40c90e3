#!/usr/bin/env bash
# TensorFlow for a machine with a GPU, jax and Python 3.12 that has no network, in parts small enough to carry.
#
#   lab/bench/gpu/tensorflow_parts.sh pack FOLDER      where a network is: FOLDER/part0..2 and FOLDER/whl, minutes, once
#   lab/bench/gpu/tensorflow_parts.sh unpack FOLDER    on the machine: FOLDER/site and FOLDER/tf, seconds
#
# Afterwards, on the machine: export PYTHONPATH=FOLDER/site:FOLDER/tf
#   TENSORFLOW    the wheel to pack       (tensorflow-cpu==2.20.0: the CPU's, since jax drives the GPU)
#   PART_SIZES    bytes of part0, part1   (57 and 31 million; part2 is the rest, about 43 million)
#   LEVEL         zstd's                  (17; 12 is several times as fast and 9 MB larger)
#   PYTHON        the interpreter         (python3)
set -euo pipefail
PYTHON=${PYTHON:-python3}
[ $# = 2 ] && { [ "$1" = pack ] || [ "$1" = unpack ]; } || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
mkdir -p "$2" && cd "$2"

# What a training run imports besides, as far as the machine's jax and PyTorch do not bring it.
WHEELS="tf-keras==2.20.1 ml-collections==1.1.0 mlperf-logging==4.1.68 astunparse==1.6.3 gast google-pasta
  termcolor keras namex optree pycocotools==2.0.11 zstandard"

download() {
  local tags=() glibc
  for glibc in 2_28 2_27 2_17 2014; do tags+=(--platform "manylinux${glibc/2_/_2_}_x86_64"); done
  "$PYTHON" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp "${tags[@]}" -d "$@"
}

pack() {
  local work first second
  read -r first second <<<"${PART_SIZES:-57000000 31000000}"
  work=$(mktemp -d)
  trap "rm -rf '$work'" EXIT
  rm -rf whl part?
  download "$work" "${TENSORFLOW:-tensorflow-cpu==2.20.0}"
  # shellcheck disable=SC2086
  download whl $WHEELS
  mkdir "$work/tf" && unzip -q "$work"/tensorflow*.whl -d "$work/tf"
  # Headers, and the interpreter of TensorFlow Lite: no run loads them.
  rm -rf "$work/tf/tensorflow/include" "$work/tf/tensorflow/lite/python/libpywrap_tflite_common.so"
  find "$work/tf" -name '*.so*' -type f -print0 | xargs -0 strip --strip-unneeded
  tar c -C "$work/tf" . | zstd "-${LEVEL:-17}" --long=27 -T0 -q >"$work/all"
  # No pipes: what they cut off would end this script.
  head -c "$first" "$work/all" >part0
  tail -c +$((first + 1)) "$work/all" >part2
  head -c "$second" part2 >part1
  tail -c +$((second + 1)) part2 >"$work/rest"
  mv "$work/rest" part2
  du -cb part? whl
}

unpack() {
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target site whl/*.whl
  cat part0 part1 part2 | PYTHONPATH=site "$PYTHON" -c '
import sys, tarfile, zstandard
reader = zstandard.ZstdDecompressor(max_window_size=2**28).stream_reader(sys.stdin.buffer)
tarfile.open(fileobj=reader, mode="r|").extractall("tf")'
}

"$1"
