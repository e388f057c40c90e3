"""Keeps `python -m common.launch` as a name of `python -m timetotrain.launch`; the launcher is timetotrain/launch/."""

import sys

from timetotrain.launch.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
