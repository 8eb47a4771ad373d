"""`python -m deployments.command_line`: the `turnstile` command where the console script is not installed."""

import sys

from deployments.command_line.main import main

if __name__ == "__main__":
    sys.exit(main())
