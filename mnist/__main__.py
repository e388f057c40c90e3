"""Command line of the mnist benchmark: `python -m mnist --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("mnist")
