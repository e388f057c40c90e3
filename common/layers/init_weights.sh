#!/usr/bin/env bash
# Fills WEIGHTS_DIR with the ImageNet weights that a network starts from: downloads, verifies, converts. Run it again
# after an interruption.
#
#   timetotrain weights BENCHMARK [FILE], or common/layers/init_weights.sh BENCHMARK
#
#   WEIGHTS_DIR     folder for the weights                                                       (required)
#   WEIGHTS_FILE    a file that you have, of any kind in common/layers/weight_files.py: nothing is downloaded    (none)
#   WEIGHTS_URL     where the file is downloaded from                                            (torchvision's)
#   WEIGHTS_SHA256  the file's SHA-256, or its first digits, eight or more      (those in a downloaded file's name, as in
#                   torch.hub's check_hash; without any the weights are called unverified)
#   TORCH_PYTHON    a Python with PyTorch: both networks compute an image, and must agree        (PYTHON, where it has it)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ -z ${WEIGHTS_DIR:-} ]]; then
  echo "error: WEIGHTS_DIR is not set; name a folder for the weights (200 MB)" >&2
  exit 2
fi
DATA_DIR=$WEIGHTS_DIR SYSTEM=
source "$root/common/data/datasets.sh" "$1" "the weights"

# pytorch/vision torchvision/models/resnet.py, commit f50e776; SSD's is also the reference's (mlcommons/training
# retired_benchmarks/ssd-v1/download_resnet34_backbone.sh).
case $1 in
  ssd) network=resnet34-333f7ec4 ;;
  *) network=resnet50-19c8e357 ;;
esac
url=${WEIGHTS_URL:-https://download.pytorch.org/models/$network.pth}
name=$(basename "${WEIGHTS_FILE:-$url}")
converted=$WEIGHTS_DIR/${name%.*}.npz
if [[ -f $converted && -z ${WEIGHTS_FILE:-}${WEIGHTS_URL:-} ]]; then
  touch "$converted" || refuse "WEIGHTS_DIR=$WEIGHTS_DIR cannot be written; name another folder"  # The newest is taken.
  echo "$converted is there; remove it to make it anew" >&2
  exit 0
fi
if [[ -z ${WEIGHTS_SHA256:-}${WEIGHTS_FILE:-} && $name =~ -([0-9a-f]{8,64})\.[^.]*$ ]]; then WEIGHTS_SHA256=${BASH_REMATCH[1]}; fi

mkdir -p "$WEIGHTS_DIR" || refuse "WEIGHTS_DIR=$WEIGHTS_DIR cannot be made; name a folder that can be written"
# Of its address too, so that what came from one server is not completed from another.
file=${WEIGHTS_FILE:-$WEIGHTS_DIR/$(cksum <<<"$url" | cut -d' ' -f1)-$name.unverified}
if [[ -z ${WEIGHTS_FILE:-} ]]; then
  download "$url" "$file" "set WEIGHTS_URL to another copy, or WEIGHTS_FILE to a file that you have"
fi
status=0
"$PYTHON" -m "$package$1.starting_weights" "$file" "$converted" --sha256="${WEIGHTS_SHA256:-}" \
  --torch_python="${TORCH_PYTHON:-}" || status=$?
# What was downloaded is not kept: the next call would take a wrong file for a finished download.
[[ -n ${WEIGHTS_FILE:-} ]] || rm -f "$file"
exit "$status"
