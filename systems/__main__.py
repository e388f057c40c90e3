"""Command line for machines: `timetotrain systems list`; timetotrain/forecast adds `predict` and `compile`."""

import sys

from timetotrain.forecast.cli import main

if __name__ == "__main__":
    sys.exit(main())
