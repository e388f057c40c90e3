"""Command line of the ssd benchmark: `python -m ssd --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("ssd")
