"""Command line of the transformer benchmark: `python -m transformer --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("transformer")
