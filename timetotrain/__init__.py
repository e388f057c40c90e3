"""Import name of the wheel, MLPerf Training benchmarks in TensorFlow 2; every package is a subpackage of it."""

import sys as _sys
from pathlib import Path as _Path

__version__ = "0.1.0"

# The wheel has the packages inside this folder, a checkout has them beside it. With the path below,
# `python -m timetotrain.resnet` is `python -m resnet` in a checkout too; imports in a checkout omit `timetotrain`.
_here = _Path(__file__).resolve().parent
if not (_here / "common").is_dir():
    __path__.append(str(_here.parent))
elif _sys.excepthook is _sys.__excepthook__:
    # `python -m timetotrain.resnet` without the packages of extra `train` ends with one line.
    from timetotrain.extras import explain as _explain

    _sys.excepthook = _explain
