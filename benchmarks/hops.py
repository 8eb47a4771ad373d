"""What does each hop between a client and the engine cost? The same request, asked at every layer.

    python -m benchmarks.hops [--requests 40] [--clients 16]

    engine     `Engine.generate` in this process
    replica    + a process of its own: the model replica by its Serve handle
    router     + the router's code in this process, over handles to both tiers
    port       + a process of its own: the router replica's HTTP port
    proxy      + HAProxy: what clients see

The request is a stream of 64 tokens, free text, or under a regular expression that every layer knows already. First
one request at a time, the layers in turns; then `--clients` at a time, each layer for some seconds. `CPU`: of this
process, of those of the replicas and of HAProxy; what they take without any request is subtracted. A stream sends as
many `events` as its reader is fast.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.processes import AS_NICE_AS_OTHERS
from deployments.local.launcher import environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=40, help="of each kind at each layer (default 40)")
    parser.add_argument("--clients", type=int, default=16, help="at the same time (default 16)")
    parser.add_argument("--seconds", type=float, default=6, help="with so many clients, for each (default 6)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnstile-") as folder:
        # Ray reads it when it is imported.
        for name, value in {**environment(Path(folder)), **AS_NICE_AS_OTHERS}.items():
            os.environ.setdefault(name, value)
        from benchmarks.hop_layers import measure

        measure(Path(folder), requests=options.requests, clients=options.clients, seconds=options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
