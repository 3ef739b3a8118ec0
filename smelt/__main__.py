"""`python -m smelt` is the command `smelt`."""

import sys

from smelt.cli import main

sys.exit(main())
