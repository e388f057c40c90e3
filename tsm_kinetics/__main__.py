"""python -m tsm_kinetics --system=cpu-tiny --data_dir=DIR"""

from common import app

app.main("tsm_kinetics")
