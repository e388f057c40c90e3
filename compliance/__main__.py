"""Runs the command line of compliance/cli.py for `python -m compliance`."""

import sys

from compliance.cli import main

if __name__ == "__main__":  # worker processes import this module again
    sys.exit(main())
