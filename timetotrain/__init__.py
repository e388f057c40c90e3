"""Package root of the wheel (MLPerf Training benchmarks in TensorFlow 2); every other package is a subpackage."""

import sys as _sys
from pathlib import Path as _Path

__version__ = "0.1.0"

# In the wheel the packages lie inside this folder; in a checkout they lie beside it. The path below makes `python -m
# timetotrain.resnet` mean `python -m resnet` in a checkout too. Imports in a checkout omit `timetotrain`.
_folder = _Path(__file__).resolve().parent
if not (_folder / "common").is_dir():
    __path__.append(str(_folder.parent))
elif _sys.excepthook is _sys.__excepthook__:
    # `python -m timetotrain.resnet` ends with a one-line message if the packages of extra `train` are missing.
    from timetotrain.extras import explain as _explain

    _sys.excepthook = _explain
