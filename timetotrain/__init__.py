"""MLPerf Training benchmarks in TensorFlow 2: the one import name of the wheel."""

from pathlib import Path as _Path

__version__ = "0.1.0"

# A checkout has the packages beside this folder, the wheel in it. `python -m timetotrain.resnet` is `python -m resnet`
# in a checkout too; imports there leave timetotrain out.
_here = _Path(__file__).resolve().parent
if not (_here / "common").is_dir():
    __path__.append(str(_here.parent))
