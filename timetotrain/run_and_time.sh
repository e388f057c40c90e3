#!/usr/bin/env bash
# Runs a benchmark and times it: `timetotrain run BENCHMARK [FLAGS]`, with variables for its flags.
# BENCHMARK/run_and_time.sh calls it. Results go to RESULT_DIR/<system>/BENCHMARK/result_<i>.txt. Variables, with defaults in parentheses:
#
#   SYSTEM      preset of BENCHMARK/presets.py, or here   (cpu-tiny; here for data of `timetotrain data`)
#   DATA_DIR    folder with the data   (.cache/BENCHMARK-tiny for cpu-tiny and here, else required)
#   NEXP        runs, each with its own seed          (1)
#   SEED        seed of the first run                 (the preset's; 0 with several runs)
#   RESULT_DIR  folder of the results                 (results)
#   LAUNCHER    local, slurm, mpirun, tpu-vm or none   (auto: the preset's, see docs/reliability.md)
#   GENERATE=0  take DATA_DIR as it is for cpu-tiny too; 1 generates its data there   (1)
#   PRINT_COMMAND=1   print the command, run nothing
#   CLEAR_CACHES=1    drop the system's page cache before each run (needs root)
#   PYTHON      interpreter   (.venv/bin/python of the checkout, else python3)
set -euo pipefail
folder=$PWD root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[[ -d $root/timetotrain/common ]] || cd "$root"  # A checkout's modules are found from its root, a wheel's anywhere.
PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
export PYTHON TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
exec "$PYTHON" -m timetotrain run "$1" --folder="$folder" ${SYSTEM:+"--system=$SYSTEM"} \
  ${DATA_DIR:+"--data_dir=$DATA_DIR"} ${RESULT_DIR:+"--result_dir=$RESULT_DIR"} ${SEED:+"--seed=$SEED"} \
  ${NEXP:+"--runs=$NEXP"} ${LAUNCHER:+"--launcher=$LAUNCHER"} --generate="${GENERATE:-1}" \
  --clear_caches="${CLEAR_CACHES:-0}" --print_command="${PRINT_COMMAND:-0}" "${@:2}"
