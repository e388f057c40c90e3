"""Keeps `python -m common.launch` as an alias of `python -m timetotrain.launch`; the code is in timetotrain/launch/."""

import sys

from timetotrain.launch.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
