"""Command line of the ptb benchmark: `python -m ptb --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("ptb")
