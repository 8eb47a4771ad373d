"""`python -m deployments.cli`: the `turnstile` command where the console script is not installed."""

import sys

from deployments.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
