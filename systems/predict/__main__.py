"""The upkeep of the model, `python -m systems.predict fit | docs`; timetotrain/forecast does it."""

import sys

from timetotrain.forecast.upkeep import main

if __name__ == "__main__":
    sys.exit(main())
