"""Command line of the gnmt benchmark: `python -m gnmt --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("gnmt")
