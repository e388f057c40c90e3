"""Programs that scripts of bench/ start as processes and that are no contenders."""

import common  # noqa: F401, sets what TensorFlow reads as it is imported, as in a run
