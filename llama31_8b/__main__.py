"""Command line of the llama31_8b benchmark: `python -m llama31_8b --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("llama31_8b")
