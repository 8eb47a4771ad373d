"""A registry of schemas that are compiled before anybody asks: CI publishes, programs name a schema and send its key.

`publish` compiles every schema of a folder on a server and writes their keys into a file; it fails where one is
refused, which guards the folder in CI. `ask` is what a program does: it sends the key of a name, not the schema.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import httpx

API_KEY = os.environ.get("TURNSTILE_API_KEY", "none")
"""Sent to the server, which ignores it unless it has keys (`router.api_keys`)."""
FOLDER = Path(__file__).parent / "schemas"


def publish(server: httpx.Client, folder: Path, keys: Path) -> int:
    """Compiles all schemas of a folder and writes `{name: key}`; returns 1 and writes nothing where one was refused."""
    found, refused = {}, 0
    for path in sorted(folder.glob("*.json")):
        specification = {"type": "json_schema", "schema": json.loads(path.read_text())}
        answer = server.post("/v1/grammars", json={"specification": specification})
        if answer.status_code == 400:
            error = answer.json()["error"]
            print(f"{path.name}: {error.get('pointer', '')}: {error['message']}", file=sys.stderr)
            refused += 1
            continue
        answer.raise_for_status()
        found[path.stem] = answer.json()["key"]
    if refused:
        return 1
    keys.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{len(found)} schemas in {keys.name}")
    return 0


def ask(server: httpx.Client, keys: Path, name: str, prompt: str) -> int:
    """Prints the answer to a prompt under the schema of a name."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "structured_outputs": {"key": json.loads(keys.read_text())[name]},
        "temperature": 0,
        "finish_within_budget": True,
        "max_tokens": 200,
    }
    answer = server.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    print(answer.json()["choices"][0]["message"]["content"])
    return 0


def main() -> int:
    """Run the example, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    parser.add_argument("--keys", type=Path, default=Path("keys.json"), help="names and keys (default %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    publishing = commands.add_parser("publish", help="compile a folder's schemas")
    publishing.add_argument("--folder", type=Path, default=FOLDER, help="files NAME.json (default: those beside this)")
    asking = commands.add_parser("ask", help="answer a prompt under a schema")
    asking.add_argument("name", help="the schema's, without .json")
    asking.add_argument("prompt")
    options = parser.parse_args()
    with httpx.Client(base_url=options.url, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=120) as server:
        if options.command == "publish":
            return publish(server, options.folder, options.keys)
        return ask(server, options.keys, options.name, options.prompt)


if __name__ == "__main__":
    sys.exit(main())
