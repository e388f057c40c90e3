"""`python -m systems.predict fit | docs` maintains the model; timetotrain/forecast implements it."""

import sys

from timetotrain.forecast.upkeep import main

if __name__ == "__main__":
    sys.exit(main())
