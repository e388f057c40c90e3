"""Command line of the ptb benchmark: `python -m ptb --system=cpu-tiny --data_dir=DIR`."""

from common.run import cli

cli.main("ptb")
