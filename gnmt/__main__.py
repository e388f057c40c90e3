"""python -m gnmt --system=cpu-tiny --data_dir=DIR"""

from common import app

app.main("gnmt")
