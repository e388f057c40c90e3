"""Runs the command line of timetotrain/cli.py for `python -m timetotrain`."""

import sys

from timetotrain.cli import main

if __name__ == "__main__":  # Worker processes import this module again.
    sys.exit(main())
