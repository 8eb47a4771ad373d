"""`python -m deployments.cli`: the `turnstile` command for environments without the console script."""

import sys

from deployments.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
