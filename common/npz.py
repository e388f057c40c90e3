"""What a damaged .npz file raises."""

from __future__ import annotations

import zipfile
import zlib

# numpy's and zipfile's, for a cut or altered file or one of another kind, when it is opened and when an array of it is
# read; NotImplementedError and RuntimeError where the altered bytes are flags of the archive.
DAMAGE = (
    *(OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error),
    *(NotImplementedError, RuntimeError),
)
