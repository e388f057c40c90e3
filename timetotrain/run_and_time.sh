#!/usr/bin/env bash
# Runs a benchmark and times it; called by BENCHMARK/run_and_time.sh: timetotrain/run_and_time.sh BENCHMARK [ARGUMENTS]
# Results go to RESULT_DIR/<system>/BENCHMARK/result_<i>.txt. Environment variables, with defaults in parentheses:
#
#   SYSTEM      preset of BENCHMARK/presets.py, or here   (cpu-tiny; here for data of `timetotrain data`)
#   DATA_DIR    folder with the data   (.cache/BENCHMARK-tiny for cpu-tiny and here, else required)
#   NEXP        runs, each with its own seed          (1)
#   SEED        seed of the first run                 (the preset's; 0 with several runs)
#   RESULT_DIR  folder of the results                 (results)
#   LAUNCHER    local, slurm, horovodrun, mpirun, tpu-vm or none   (auto: the preset's, see docs/reliability.md)
#   GENERATE=0  take DATA_DIR as it is for cpu-tiny too; 1 generates its data there   (1)
#   PRINT_COMMAND=1, or the flag --print_command: print the command, run nothing
#   CLEAR_CACHES=1  drop the system's page cache before each run (needs root)
# `python -m timetotrain run BENCHMARK` is the same with flags in place of variables.
# Further arguments go to python -m BENCHMARK, e.g. --config.optimizer.momentum=0.9
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# In a checkout, commands run in its root. In an installed package, whose root has an __init__.py, they run in the
# caller's folder.
package=
if [[ -f $root/__init__.py ]]; then
  package=timetotrain. root=$PWD
fi
if [[ $PWD != "$root" ]]; then  # Makes the caller's relative paths absolute.
  for name in DATA_DIR RESULT_DIR; do
    [[ -z ${!name:-} || ${!name} == /* || ${!name} == *://* ]] || printf -v "$name" %s "$PWD/${!name}"
  done
fi
cd "$root"
benchmark=$1
shift

if [[ -z ${SYSTEM:-} && -n ${DATA_DIR:-} && -f $DATA_DIR/description.json ]]; then
  SYSTEM=here
  echo "system   here, since the data in $DATA_DIR are your own; SYSTEM=NAME takes another preset" >&2
fi
SYSTEM=${SYSTEM:-cpu-tiny}
NEXP=${NEXP:-1}
RESULT_DIR=${RESULT_DIR:-results}
PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
export PYTHON TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
shown=()
if [[ ${PRINT_COMMAND:-0} == 1 || " $* " == *" --print_command "* ]]; then shown=(--print_command); fi

if [[ ($SYSTEM == cpu-tiny && ${GENERATE:-1} == 1) || ($SYSTEM == here && -z ${DATA_DIR:-}) ]]; then
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

launch=("$PYTHON" -m timetotrain.launch.preset "$benchmark" "--launcher=${LAUNCHER:-auto}")
flags=("--system=$SYSTEM" "--data_dir=$DATA_DIR" "--result_dir=$RESULT_DIR")
if [[ ${CLEAR_CACHES:-0} == 1 && ${#shown[@]} -eq 0 ]]; then
  case $("${launch[@]}" --print_command -- "${flags[@]}" "$@") in
    sbatch* | mpirun* | horovodrun* | gcloud* | *--hosts=*)
      echo "error: CLEAR_CACHES=1 clears the caches of this machine, not of those that run; clear them there" >&2
      exit 2
      ;;
  esac
fi

# A single run replaces this script, and so gets its signals. Of several runs, each is a background process: bash would
# hold back a signal until a foreground process ends. The script passes the signal on, the run saves what it has and
# ends, and the script waits for it.
run() {
  if [[ $NEXP == 1 ]]; then exec "$@"; fi
  local child= code=0 signalled=
  trap 'signalled=1; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT HUP
  "$@" <&0 &
  child=$!
  if [[ -n $signalled ]]; then kill -TERM "$child" 2>/dev/null || true; fi
  while code=0; wait "$child" || code=$?; kill -0 "$child" 2>/dev/null; do :; done
  # A signal ends `wait` with the signal's status; a second `wait` gives the run's, or, a few times in a thousand, -1.
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
  # Status 1, a run that missed its target, is a result too; a higher status ends the series.
  if [[ $status -gt 1 ]]; then exit "$status"; fi
done
exit "$status"
