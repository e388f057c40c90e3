#!/usr/bin/env bash
# Installs the packages that a run needs into .venv at the project's root, from the lock file.
#
#   PYTHON   the Python of the environment, 3.11 to 3.13   (python3.11, else python3)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v make >/dev/null || { echo "error: make is not installed; install it (apt install make)" >&2; exit 2; }
exec make --no-print-directory setup
