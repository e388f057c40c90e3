#!/usr/bin/env bash
# The timed run of a benchmark, for BENCHMARK/run_and_time.sh: common/run_and_time.sh BENCHMARK [ARGUMENTS]
# Results go to RESULT_DIR/<system>/BENCHMARK/result_<i>.txt
#
#   SYSTEM      preset of BENCHMARK/presets.py         (cpu-tiny)
#   DATA_DIR    folder that init_datasets.sh filled   (.cache/BENCHMARK-tiny for cpu-tiny, else needed)
#   NEXP        runs, each with a seed of its own     (1)
#   SEED        seed of the first run                 (the preset's; 0 with several runs)
#   RESULT_DIR  where results go                      (results)
#   LAUNCHER    local, slurm, horovodrun, mpirun, tpu-vm or none   (auto: the preset's, see docs/reliability.md)
#   PRINT_COMMAND=1, or the flag --print_command: show the command, run nothing
#   CLEAR_CACHES=1  drop the system's page cache before each run (needs root)
# Further arguments go to python -m BENCHMARK, e.g. --config.optimizer.momentum=0.9
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Commands run in a checkout's root; where pip installed this, root is a package, and they run in the caller's folder.
package=
if [[ -f $root/__init__.py ]]; then
  package=timetotrain. root=$PWD
fi
if [[ $PWD != "$root" ]]; then  # Paths are the caller's.
  for name in DATA_DIR RESULT_DIR; do
    [[ -z ${!name:-} || ${!name} == /* || ${!name} == *://* ]] || printf -v "$name" %s "$PWD/${!name}"
  done
fi
cd "$root"
benchmark=$1
shift

SYSTEM=${SYSTEM:-cpu-tiny}
NEXP=${NEXP:-1}
RESULT_DIR=${RESULT_DIR:-results}
PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
export PYTHON TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
shown=()
if [[ ${PRINT_COMMAND:-0} == 1 || " $* " == *" --print_command "* ]]; then shown=(--print_command); fi

if [[ $SYSTEM == cpu-tiny ]]; then
  DATA_DIR=${DATA_DIR:-.cache/$benchmark-tiny}
  [[ ${#shown[@]} -gt 0 ]] || "$PYTHON" -m "$package$benchmark.tiny" "$DATA_DIR"
elif [[ ${#shown[@]} -gt 0 ]]; then
  DATA_DIR=${DATA_DIR:-DATA_DIR}
elif [[ -z ${DATA_DIR:-} ]]; then
  echo "error: DATA_DIR is not set; fill a folder with $benchmark/init_datasets.sh and name it" >&2
  exit 2
fi
if ! [[ $NEXP =~ ^[1-9][0-9]*$ ]]; then
  echo "error: NEXP=$NEXP is not a positive number of runs" >&2
  exit 2
fi

launch=("$PYTHON" -m common.launch.preset "$benchmark" "--launcher=${LAUNCHER:-auto}")
flags=("--system=$SYSTEM" "--data_dir=$DATA_DIR" "--result_dir=$RESULT_DIR")
if [[ ${CLEAR_CACHES:-0} == 1 && ${#shown[@]} -eq 0 ]]; then
  case $("${launch[@]}" --print_command -- "${flags[@]}" "$@") in
    sbatch* | mpirun* | horovodrun* | gcloud* | *--hosts=*)
      echo "error: CLEAR_CACHES=1 clears the caches of this machine, not of those that run; clear them there" >&2
      exit 2
      ;;
  esac
fi

# A single run takes the place of this script, and so gets its signals. Of several, one in the foreground would keep a
# signal waiting, and one behind the script would outlive it: the run is told, saves what it has, and is waited for.
run() {
  if [[ $NEXP == 1 ]]; then exec "$@"; fi
  local child= code=0 signalled=
  trap 'signalled=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT HUP
  "$@" <&0 &
  child=$!
  if [[ -n $signalled ]]; then kill -TERM "$child" 2>/dev/null || true; fi
  while code=0; wait "$child" || code=$?; kill -0 "$child" 2>/dev/null; do :; done
  # A signal ends a wait with its own status; that of the run is remembered, but for a few times in a thousand (-1).
  if [[ -n $signalled ]]; then
    code=0
    wait "$child" || code=$?
    if [[ $code -lt 0 ]]; then code=143; fi
  fi
  trap - TERM INT HUP
  return "$code"
}

status=0
for ((i = 0; i < NEXP; i++)); do
  cleared=()
  if [[ ${CLEAR_CACHES:-0} == 1 && ${#shown[@]} -eq 0 ]]; then
    sync
    echo 3 >/proc/sys/vm/drop_caches || { echo "error: CLEAR_CACHES=1 needs root" >&2; exit 2; }
    cleared=(--cache_cleared)
  fi
  seed=()
  if [[ -n ${SEED:-} || $NEXP -gt 1 ]]; then seed=("--seed=$((${SEED:-0} + i))"); fi
  run "${launch[@]}" "${shown[@]}" -- "${flags[@]}" "${seed[@]}" "${cleared[@]}" "$@" || status=$?
  # A run that missed its target is a result too; anything else ends the series.
  if [[ $status -gt 1 ]]; then exit "$status"; fi
done
exit "$status"
