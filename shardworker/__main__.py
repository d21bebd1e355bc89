"""`python -m shardworker`."""

import sys

from shardworker.cli import main

sys.exit(main())
