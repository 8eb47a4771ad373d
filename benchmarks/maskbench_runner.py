"""Turnstile as an engine of MaskBench's own runner (guidance-ai/jsonschemabench, `maskbench/`).

    git clone https://github.com/guidance-ai/jsonschemabench
    python -m benchmarks.maskbench_runner jsonschemabench/maskbench --tokenizer MODEL --output OUT FILES

FILES is a folder of the checkout, `maskbench/data`. Everything behind the first folder is for the runner, and what it
writes is read by its `scripts/maskbench_results.py`. `TurnstileEngine` has the methods of the runner's `Engine`: it
can also stand in a `turnstile_engine.py` beside the other engines there.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers import GrammarOptions, TokenFSM, Vocabulary, compile_grammar, warm_up, warm_up_formats


class TurnstileEngine:
    """One schema, and one text under it at a time. The runner sets the first four attributes."""

    tokenizer: Any
    tokenizer_model_id: str
    multi = False
    debug = False

    def __init__(self, options: GrammarOptions | None = None) -> None:
        # The runner writes instances with `json.dumps`, whose separators are ", " and ": ".
        self._options = options or GrammarOptions(whitespace="flexible")
        self._vocabulary: Vocabulary | None = None
        self._fsm: TokenFSM | None = None
        self._state = 0
        self._row: NDArray[np.uint32] = np.zeros(0, np.uint32)

    def get_id(self) -> str:
        """What the runner names its output folder after."""
        return "turnstile"

    def get_name(self) -> str:
        """What stands in its tables."""
        return "Turnstile"

    def get_module(self) -> str:
        """The distribution whose version it asks for."""
        return "turnstile-llm"

    def get_version(self) -> str:
        """The installed version."""
        return importlib.metadata.version(self.get_module())

    def init(self) -> None:
        """Read the tokenizer, and load kernels, neither of which the runner counts."""
        self._vocabulary = Vocabulary.from_tokenizer(self.tokenizer, len(self.tokenizer))
        warm_up(self._vocabulary)
        warm_up_formats(self._vocabulary)

    def compile_grammar(self, schema: Any) -> None:
        """Raises GrammarError where the schema is refused."""
        assert self._vocabulary is not None, "init() comes first"
        specification = {"type": "json_schema", "schema": schema}
        self._fsm = compile_grammar(specification, self._vocabulary, options=self._options)
        self.reset()

    def reset(self) -> None:
        """Back to the beginning of a text."""
        assert self._fsm is not None, "compile_grammar() comes first"
        self._state = self._fsm.initial_state

    def compute_mask(self) -> None:
        """Shape [words], uint32: bit t % 32 of word t // 32."""
        assert self._fsm is not None
        self._row = self._fsm.allowed_mask(self._state)

    def commit_token(self, token: int) -> bool:
        """Whether the mask allows a token, which is read then."""
        assert self._fsm is not None
        if not self._row[token // 32] >> np.uint32(token % 32) & 1:
            return False
        self._state = self._fsm.next_state(self._state, token)
        return True

    def log_single(self, text: str) -> None:
        """What the runner prints unless it is one of many."""
        if not self.multi:
            print(text, file=sys.stderr)


def main() -> None:
    """Start the runner of a checkout with our engine in place of its choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runner", type=Path, help="the folder `maskbench` of a checkout of jsonschemabench")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the runner takes")
    options = parser.parse_args()
    if not (options.runner / "maskbench" / "runner.py").is_file():
        parser.error(f"{options.runner} holds no maskbench/runner.py: it is the folder `maskbench` of a checkout")
    sys.path.insert(0, str(options.runner))
    runner: Any = importlib.import_module("maskbench.runner")

    def engine(arguments: Any) -> TurnstileEngine:
        made = TurnstileEngine()
        made.multi, made.debug = arguments.multi, arguments.debug
        made.tokenizer_model_id = arguments.tokenizer
        return made

    runner.get_engine = engine
    sys.argv = ["maskbench", *options.arguments]
    runner.main()


if __name__ == "__main__":
    main()
