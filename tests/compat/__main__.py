"""The client packages of others against a real server.

    python -m tests.compat [--url http://127.0.0.1:8000] [--record] [test_openai.py ...]

Each environment of `ENVIRONMENTS` runs the test files of its packages. With `--record` the requests that they sent
are written to `tests/compat/recorded/`, which `make test` replays without the packages, and the table of packages and
calls to `benchmarks/results/clients.md`. Exit status 1 when a test fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from deployments.shipped import REPOSITORY
from tests.compat.relay import Relay
from tests.compat.table import table
from tests.integration.server import Server

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
TABLE = REPOSITORY / "benchmarks" / "results" / "clients.md"
ENVIRONMENTS = {
    ".venv-clients-openai3": None,
    ".venv-clients-openai2": ["test_instructor.py", "test_llama_index.py", "test_strands.py"],
}
"""Virtual environments, and the files of `tests/compat` that they run: `None` stands for those of no other one."""


def run(relay: Relay, results: Path, chosen: list[str]) -> bool:
    """Return whether the tests of all environments passed."""
    others = [name for names in ENVIRONMENTS.values() for name in names or ()]
    rest = [path.name for path in sorted(HERE.glob("test_*.py")) if path.name not in others]
    environment = {
        **os.environ,
        "TURNSTILE_RELAY": relay.url,
        "TURNSTILE_RESULTS": str(results),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # not the one that it downloads
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    passed = True
    for folder, names in ENVIRONMENTS.items():
        # The fixtures of the other tests need packages of the server.
        options = [
            "-c",
            "pyproject.toml",
            f"--confcutdir={HERE}",
            "-p",
            "no:cacheprovider",
            "-p",
            "anyio",
            "-p",
            "pytest_timeout",
        ]
        files = [str(HERE / name) for name in names or rest if name in chosen or not chosen]
        if not files:
            continue
        told = subprocess.run(
            [REPOSITORY / folder / "bin" / "python", "-m", "pytest", *options, *files], env=environment, cwd=REPOSITORY
        )
        passed &= told.returncode == 0
    return passed


def record(relay: Relay) -> None:
    RECORDED.mkdir(exist_ok=True)
    for package, requests in relay.recorded.items():
        lines = [json.dumps(request, ensure_ascii=False) for request in requests.values()]
        (RECORDED / f"{package}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=os.environ.get("TURNSTILE_URL"), help="a running server (default: start one)")
    parser.add_argument("--record", action="store_true", help="write the requests and the table")
    parser.add_argument("files", nargs="*", help="of tests/compat (default: all, and with --record the table)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        thinking = {"start": "<think>", "end": "</think>", "by_default": False}
        own = {"store": f"file://{folder}/grammars", "thinking": thinking}
        relay = stack.enter_context(Relay(options.url or stack.enter_context(Server(own)).url))
        (folder / "results.jsonl").touch()
        passed = run(relay, folder / "results.jsonl", options.files)
        if options.record:
            record(relay)
        calls = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    text = table(calls)
    if options.record and not options.files:
        TABLE.write_text(text)
    print(text)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
