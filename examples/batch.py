"""A file of prompts, answered under one schema, several at a time: JSON Lines in, JSON Lines out.

Run again after an interruption, it goes on with the lines that have no answer yet. The id of a request is made from its
line, so a request that is repeated gets the same answer, token for token.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from openai import APIError, AsyncOpenAI
from tqdm import tqdm

API_KEY = os.environ.get("TURNSTILE_API_KEY", "none")
"""Sent to the server, which ignores it unless it has keys (`router.api_keys`)."""
SCHEMA = Path(__file__).parent / "schemas" / "sentiment.json"


async def answer(client: AsyncOpenAI, options: argparse.Namespace, schema: Any, prompt: str) -> dict[str, Any]:
    """The line to write for a prompt: its answer, or why there is none."""
    request_id = hashlib.sha256(prompt.encode()).hexdigest()[:32]
    try:
        completion = await client.chat.completions.create(
            model=options.model,
            messages=[{"role": "user", "content": prompt}],
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            max_tokens=options.max_tokens,
            extra_headers={"x-request-id": request_id},
        )
    except APIError as error:
        return {"prompt": prompt, "error": error.message}
    (choice,) = completion.choices
    if choice.finish_reason != "stop":
        return {"prompt": prompt, "error": f"cut: {choice.finish_reason}"}
    return {"prompt": prompt, "answer": json.loads(choice.message.content or "")}


async def run(options: argparse.Namespace) -> int:
    """Returns how many prompts have no answer."""
    schema = json.loads(options.schema.read_text())
    prompts = [json.loads(line)["prompt"] for line in options.input.read_text().splitlines()]
    done = {}
    if options.output.exists():
        lines = [json.loads(line) for line in options.output.read_text().splitlines()]
        done = {line["prompt"]: line for line in lines if "answer" in line}
    waiting = [prompt for prompt in dict.fromkeys(prompts) if prompt not in done]
    room = asyncio.Semaphore(options.at_a_time)

    async def one(prompt: str) -> dict[str, Any]:
        async with room:
            return await answer(client, options, schema, prompt)

    with options.output.open("w") as output:
        output.writelines(json.dumps(line) + "\n" for line in done.values())
        async with AsyncOpenAI(base_url=f"{options.url}/v1", api_key=API_KEY) as client:
            tasks = [asyncio.create_task(one(prompt)) for prompt in waiting]
            failed = 0
            for finished in tqdm(asyncio.as_completed(tasks), total=len(tasks), unit="prompt"):
                line = await finished
                failed += "error" in line
                output.write(json.dumps(line) + "\n")
                output.flush()
    return failed


def main() -> int:
    """Run the example, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path, help='lines such as {"prompt": "..."}')
    parser.add_argument("output", type=Path, help="lines with prompt and answer, or error")
    parser.add_argument("--schema", type=Path, default=SCHEMA, help="a file with a JSON Schema (default: a sentiment)")
    parser.add_argument("--at-a-time", type=int, default=8, help="open requests (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default %(default)s)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    parser.add_argument("--model", default="turnstile-tiny", help="the model's name (default %(default)s)")
    failed = asyncio.run(run(parser.parse_args()))
    print(f"{failed} without an answer" if failed else "all answered", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
