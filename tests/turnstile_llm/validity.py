"""Are outputs through the adapter for an engine valid, and its masks those of the automaton?

    python -m tests.turnstile_llm.validity --data FOLDER --engine transformers

FOLDER holds the files of MaskBench (guidance-ai/jsonschemabench, MIT). The embedded model answers one prompt under each
of 200 schemas at temperature 1. Each mask is compared bit for bit with that of a `TokenFSM` of its own. A complete
output is judged by `jsonschema`. Exit status 1 if an output is invalid or a mask differs. The engines `llama.cpp` and
`mlx` need the environment of `make test-engines`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.frame import Table, chosen, new_parser, progress
from benchmarks.maskbench_data import parse_with_data
from benchmarks.soundness import schema_judge
from grammar_workers import compile_grammar
from tests.engines.runners import END, FOLDER, RUNNERS, Recorder
from turnstile_llm import GrammarError, compile

PROMPT = [{"role": "user", "content": "Answer with an example."}]


def main() -> int:
    parser = new_parser(__doc__)
    parser.add_argument("--engine", choices=RUNNERS, default="transformers")
    parser.add_argument("--schemas", type=int, default=200, help="how many")
    parser.add_argument("--max-tokens", type=int, default=200, help="of each output")
    arguments = parse_with_data(parser)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    prompt = tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True)["input_ids"]
    with tempfile.TemporaryDirectory() as folder:
        runner = RUNNERS[arguments.engine](Path(folder))
    found: Counter[str] = Counter()
    for number, path in enumerate(progress(chosen(arguments.data, arguments.schemas), "schemas")):
        schema = json.loads(path.read_text())["schema"]
        try:
            recorder = Recorder(runner.processor(compile(schema, runner.vocabulary)))
        except GrammarError:
            found["rejected"] += 1
            continue
        output = runner.generate(prompt, recorder, arguments.max_tokens, temperature=1.0, seed=number)
        alone = compile_grammar({"type": "json_schema", "schema": schema}, runner.vocabulary)
        equal, different = recorder.compared(alone, len(prompt))
        found.update({"equal masks": equal, "different masks": different})
        if output[-1] != END:
            found["truncated"] += 1
        elif error := schema_judge(schema)(tokenizer.decode(output, skip_special_tokens=True)):
            print(path.name, error, file=sys.stderr)
            found["invalid"] += 1
        else:
            found["valid"] += 1
    columns = ("valid", "invalid", "truncated", "rejected", "equal masks", "different masks")
    Table("engine", "schemas", *columns).row(
        arguments.engine, arguments.schemas, *(found[column] for column in columns)
    )
    return int(found["invalid"] + found["different masks"] > 0)


if __name__ == "__main__":
    sys.exit(main())
