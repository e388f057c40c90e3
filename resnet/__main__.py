"""Command line of the resnet benchmark: `python -m resnet --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("resnet")
