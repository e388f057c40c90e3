#!/usr/bin/env bash
# The timed run: results go to RESULT_DIR/<system>/gnmt/result_<i>.txt
# SYSTEM, DATA_DIR, NEXP and the other variables are those of common/run_and_time.sh.
exec "$(dirname "${BASH_SOURCE[0]}")/../common/run_and_time.sh" gnmt "$@"
