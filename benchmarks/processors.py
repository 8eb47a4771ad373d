"""CPU time per token of logits processors inside an engine: Turnstile's, and the engine's own or xgrammar's.

    python -m benchmarks.processors --data FOLDER --engine llama.cpp

The embedded model (1,024 tokens) answers one prompt under each schema at temperature 1, with each method. The time is
that of the processor alone: the forward passes are complete when it begins, and compilation is not counted. For
llama.cpp, it is the time of the whole sampler, because llama.cpp's own grammar (`LlamaGrammar.from_json_schema`) is a
part of the sampler. Complete outputs are judged by `jsonschema`. The engine `wide` is transformers with a random model
of 131,072 tokens. The engines `llama.cpp` and `mlx` need the environment of `make test-engines`. The methods `xgrammar`
(engines `transformers` and `wide`) and `llguidance` (engine `wide`) need the extra `bench`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from benchmarks.engines import Llguidance, Xgrammar
from benchmarks.frame import Table, add_sample, chosen, new_parser, progress
from benchmarks.maskbench_data import parse_with_data
from benchmarks.soundness import schema_judge
from tests.engines.runners import FOLDER, RUNNERS, Wide
from turnstile_llm import apply_bitmask, compile

PROMPT = [{"role": "user", "content": "Answer with an example."}]
# Returns a processor and keyword arguments of `Runner.generate` for a schema. An exception: the schema is rejected.
Method = Callable[[Any], tuple[Any, dict[str, Any]]]


class Clock:
    """Measures calls.

    Args:
        ready: Called with the arguments and with the result of each call, so that computation is not left for later.

    Attributes:
        times: CPU seconds of each call.
    """

    def __init__(self, ready: Callable[..., Any] = lambda *_: None) -> None:
        self._ready = ready
        self.times: list[float] = []

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `function` and measures the call."""

        def call(*arguments: Any) -> Any:
            self._ready(*arguments)
            start = time.process_time()
            result = function(*arguments)
            self._ready(result)
            self.times.append(time.process_time() - start)
            return result

        return call


def gbnf(runner: Any, schema: Any) -> tuple[Any, dict[str, Any]]:
    """Return the arguments that make llama.cpp use its own grammar of a schema."""
    import llama_cpp

    grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
    table = llama_cpp.llama_model_get_vocab(runner.llama.model)
    sampler = llama_cpp.llama_sampler_init_grammar(table, grammar._grammar.encode(), b"root")
    if not sampler:
        raise ValueError("llama.cpp rejects the grammar: `generate` would crash")
    llama_cpp.llama_sampler_free(sampler)
    return None, {"grammar": grammar}


def xgrammar(engine: str, runner: Any) -> Method:
    """Return the method that uses xgrammar's logits processor for transformers."""
    from xgrammar import GrammarCompiler, TokenizerInfo
    from xgrammar.contrib.hf import LogitsProcessor

    if engine == "wide":
        compiler = Xgrammar({}).compiler
    else:
        tokenizer, size = AutoTokenizer.from_pretrained(FOLDER), runner.vocabulary.size
        compiler = GrammarCompiler(TokenizerInfo.from_huggingface(tokenizer, vocab_size=size))
    return lambda schema: (LogitsProcessor(compiler.compile_json_schema(json.dumps(schema))), {})


def llguidance() -> Method:
    """Return the method that uses llguidance's matcher for Tekken in a logits processor."""
    engine = Llguidance({})

    def method(schema: Any) -> tuple[Any, dict[str, Any]]:
        session, begun = engine.compile(schema), False

        def processor(ids: Any, scores: Any) -> Any:
            nonlocal begun
            if begun:
                session.advance(int(ids[0, -1]))
            begun = True
            return apply_bitmask(scores.clone(), session.mask().view(np.int32)[None])

        return processor, {}

    return method


def methods(engine: str, runner: Any) -> dict[str, Method]:
    """Return the methods of an engine by name."""
    found: dict[str, Method] = {"Turnstile": lambda schema: (runner.processor(compile(schema, runner.vocabulary)), {})}
    if engine == "llama.cpp":
        return {"no constraint": lambda _: (None, {}), **found, "GBNF": functools.partial(gbnf, runner)}
    if engine in ("transformers", "wide") and importlib.util.find_spec("xgrammar"):
        found["xgrammar"] = xgrammar(engine, runner)
    if engine == "wide" and importlib.util.find_spec("llguidance"):
        found["llguidance"] = llguidance()
    return found


def clock_of(engine: str) -> Clock:
    """Return the clock of an engine. For llama.cpp, it measures all samplers."""
    if engine == "llama.cpp":
        from llama_cpp._internals import LlamaSampler

        clock = Clock()
        LlamaSampler.sample = clock.timed(LlamaSampler.sample)
        return clock
    if engine == "mlx":
        import mlx.core

        return Clock(mlx.core.eval)
    import torch

    torch.set_num_threads(1)
    return Clock()


def main() -> int:
    """Run the program."""
    parser = new_parser(__doc__)
    parser.add_argument("--engine", choices=[*RUNNERS, "wide"], default="transformers")
    parser.add_argument("--max-tokens", type=int, default=200, help="of each output")
    add_sample(parser)
    arguments = parse_with_data(parser)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    prompt = tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True)["input_ids"]
    with tempfile.TemporaryDirectory() as folder:
        runner: Any = {**RUNNERS, "wide": Wide}[arguments.engine](Path(folder))
    ends, token_bytes = runner.vocabulary.eos_token_ids, runner.vocabulary.token_bytes
    clock = clock_of(arguments.engine)
    verdicts = ("valid", "invalid", "truncated", "rejected")
    table = Table("engine", "method", "CPU µs per token, mean", "p50", "p99", "tokens", *verdicts)
    for name, method in methods(arguments.engine, runner).items():
        found: Counter[str] = Counter()
        clock.times.clear()
        for number, path in enumerate(progress(chosen(arguments.data, arguments.sample), name)):
            schema = json.loads(path.read_text())["schema"]
            try:
                processor, settings = method(schema)
            except Exception:  # llama.cpp's converter has no error class
                found["rejected"] += 1
                continue
            processor = processor if arguments.engine == "llama.cpp" else clock.timed(processor)
            output = runner.generate(prompt, processor, arguments.max_tokens, 1.0, number, **settings)
            text = b"".join(map(token_bytes, output)).decode("utf-8", "replace")
            error = output[-1] in ends and schema_judge(schema)(text)
            found["truncated" if error is False else "invalid" if error else "valid"] += 1
        micros = np.array(clock.times) * 1e6
        figures = [f"{figure:.1f}" for figure in (micros.mean(), *np.percentile(micros, [50, 99]))]
        table.row(arguments.engine, name, *figures, len(micros), *(found[verdict] for verdict in verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
