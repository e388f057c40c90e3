"""`python -m systems.forecast fit`: fits data/law.json and data/errors.json to the tables of scores."""

import argparse
import sys

from common.files import INSTALLED


def main() -> int:
    """Fits the law with the kernel's committed numbers; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m systems.forecast", description=__doc__)
    parser.add_argument("what", choices=("fit",), help="takes ten minutes on one processor")
    parser.parse_args()
    if INSTALLED:
        parser.error("it writes files of a checkout; run `python -m systems.forecast` there")
    from systems.forecast import law, law_fit

    content, errors = law_fit.refit(law.committed()["kernel"])
    law_fit.write(content, law.PATH)
    law_fit.write(errors, law_fit.ERRORS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
