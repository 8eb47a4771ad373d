"""schemathesis' coverage and stateful phases against a running server, to their ends.

    python -m tests.integration.phases [--url http://127.0.0.1:8000] [--most 20]

The first tries each keyword of the OpenAPI document with values inside and outside of it, the second calls paths with
what others have answered. Prints schemathesis' report, and exits as it does. Without `--url` a server is started.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from pathlib import Path

from tests.integration.server import Server

PHASES = "coverage,stateful"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SLOWEST_S = 120


def run(url: str, most: int) -> int:
    """Exit status; `most`: scenarios of the stateful phase."""
    program = str(Path(sys.executable).with_name("schemathesis"))
    options = ["--phases", PHASES, "--checks", CHECKS, "--max-examples", str(most), "--seed", "1", "--no-color"]
    bounds = ["--request-timeout", str(SLOWEST_S), "--continue-on-failure"]
    return subprocess.run([program, "run", f"{url}/openapi.json", *options, *bounds], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--most", type=int, default=20, help="scenarios of the stateful phase")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(Server({"store": "memory://"})).url
        return run(url, options.most)


if __name__ == "__main__":
    sys.exit(main())
