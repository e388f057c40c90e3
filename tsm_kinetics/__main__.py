"""Command line of the tsm_kinetics benchmark: `python -m tsm_kinetics --system=cpu-tiny --data_dir=DIR`."""

from timetotrain.run import cli

cli.main("tsm_kinetics")
