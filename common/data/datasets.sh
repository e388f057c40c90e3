# Functions and settings that the init_datasets.sh scripts share; each sources this file:
#
#   source "$(dirname "${BASH_SOURCE[0]}")/../common/data/datasets.sh" BENCHMARK "what DATA_DIR is a folder for"
#
# Afterwards the working directory is the checkout's root (where pip installed the project, the caller's directory),
# PYTHON is the interpreter and DATA_DIR is set. With SYSTEM=cpu-tiny this file generates the benchmark's tiny data set
# instead and ends the script.
set -euo pipefail
# Makes the caller's relative paths absolute.
for name in WEIGHTS_DIR WEIGHTS_FILE DATA_DIR RAW_DIR COCO_DIR ILSVRC_DIR VIDEOS_DIR LISTS_DIR CODES VOCABULARY SHA256SUMS; do
  [[ -z ${!name:-} || ${!name} == /* || ${!name} == *://* ]] || printf -v "$name" %s "$PWD/${!name}"
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
package=  # Prefix of the modules' names in the wheel.
if [[ -f $root/__init__.py ]]; then package=timetotrain.; else cd "$root"; fi

PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}

refuse() {
  echo "error: $1" >&2
  exit 2
}

[[ -n ${DATA_DIR:-} ]] || refuse "DATA_DIR is not set; name a folder for $2"
if [[ ${SYSTEM:-} == cpu-tiny ]]; then
  exec "$PYTHON" -m "$package$1.tiny" "$DATA_DIR"
fi

# download URL FILE HINT: downloads by way of FILE.part, which an interruption leaves and the next call completes. HINT
# tells the user what to do if the download fails.
download() {
  [[ -f $2 ]] && return
  echo "downloading $1" >&2
  "$PYTHON" -m "${package}common.data.download" "$1" "$2" || refuse "cannot download $1; $3"
}

# verify FILE SHA256: ends the script if the checksum differs.
verify() {
  local found
  found=$(sha256sum "$1" | cut -d' ' -f1)
  [[ $found == "$2" ]] || refuse "$1: SHA-256 is $found, must be $2; remove the file, download it again"
}

# unpack ARCHIVE PATTERN FILE: extracts the member of a gzipped tar that matches the pattern, completely or not at all.
unpack() {
  [[ -f $3 ]] && return
  echo "unpacking $(basename "$3")" >&2
  tar -xOzf "$1" --wildcards "$2" >"$3.part" || refuse "$1 holds no $2, or the disk is full; remove it and run this again"
  mv "$3.part" "$3"
}
