#!/usr/bin/env bash
# The timed run: results go to RESULT_DIR/<system>/llama31_8b/result_<i>.txt
# SYSTEM, DATA_DIR, NEXP and the other variables are described in timetotrain/run_and_time.sh.
exec "$(dirname "${BASH_SOURCE[0]}")/../timetotrain/run_and_time.sh" llama31_8b "$@"
