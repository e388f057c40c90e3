"""Command line of the maskrcnn benchmark: `python -m maskrcnn --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("maskrcnn")
