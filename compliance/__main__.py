"""`python -m compliance`."""

import sys

from compliance.cli import main

sys.exit(main())
