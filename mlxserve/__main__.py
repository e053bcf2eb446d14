"""``python -m mlxserve`` is the program ``mlxserve``."""

import sys

from mlxserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
