"""Downloads a file, and completes an interrupted download: python -m common.data.download URL FILE

FILE.part holds what has come so far. TensorFlow-free.
"""

import http.client
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

TRIES, WAIT_SECONDS, TIMEOUT_SECONDS = 4, 1.0, 60.0
_BLOCK = 1 << 20


def download(url: str, path: str) -> None:
    """Downloads `url` to `path`, which appears when it is complete.

    Raises OSError if the server refuses, or ends the connection again and again.
    """
    for attempt in range(TRIES):
        try:
            _continue(url, f"{path}.part")
            break
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or attempt == TRIES - 1 or url.startswith("file:"):
                raise error if isinstance(error, OSError) else OSError(repr(error)) from error
        time.sleep(WAIT_SECONDS * 2**attempt)
    os.replace(f"{path}.part", path)


def _continue(url: str, part: str) -> None:
    """Appends to `part` what it lacks, or writes it anew where the server sends no ranges."""
    have = os.path.getsize(part) if os.path.exists(part) else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            with open(part, "ab" if getattr(answer, "status", None) == 206 else "wb") as file:
                before = file.tell()
                shutil.copyfileobj(answer, file, _BLOCK)
                came, length = file.tell() - before, answer.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # Nothing is left: the part is the whole.
            return
        raise
    if length and came < int(length):
        raise OSError(f"{came} of {length} bytes came")


def main(argv: Sequence[str]) -> int:
    try:
        download(*argv)
    except (OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
