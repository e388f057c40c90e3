"""`python -m systems.forecast fit` maintains the law; timetotrain/forecast implements it."""

import sys

from timetotrain.forecast.upkeep import main

if __name__ == "__main__":
    sys.exit(main())
