"""`python -m moonpool`, the same as the `moonpool` command."""

import sys

from moonpool.cli import main

if __name__ == "__main__":
    sys.exit(main())
