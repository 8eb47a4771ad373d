"""Turnstile as an engine of MaskBench's own runner (guidance-ai/jsonschemabench, `maskbench/`).

    git clone https://github.com/guidance-ai/jsonschemabench
    python -m benchmarks.maskbench_runner jsonschemabench/maskbench --tokenizer MODEL --output OUT FILES

FILES is a folder of the checkout: `maskbench/data`. All arguments after the first folder are passed to the runner. The
script `scripts/maskbench_results.py` of the checkout reads the output. `TurnstileEngine` has the methods of the
runner's `Engine`, so a file `turnstile_engine.py` next to the other engines of the checkout can import it.
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
    """Turnstile with the methods of the runner's `Engine`: one schema and one text at a time.

    Args:
        options: Options of the grammars; None: flexible whitespace, because the runner serializes with `json.dumps`.

    Attributes:
        tokenizer: Tokenizer of the model. The runner sets this attribute and the following ones.
        tokenizer_model_id: Name of the model.
        multi: True if the runner runs several processes.
        debug: True if the runner prints details.
    """

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
        """Return the name of the engine in the runner's output folder."""
        return "turnstile"

    def get_name(self) -> str:
        """Return the name of the engine in the runner's tables."""
        return "Turnstile"

    def get_module(self) -> str:
        """Return the name of the Python distribution whose version the runner reports."""
        return "turnstile-llm"

    def get_version(self) -> str:
        """Return the installed version of Turnstile."""
        return importlib.metadata.version(self.get_module())

    def init(self) -> None:
        """Read the tokenizer, and load the kernels. The runner does not measure this call."""
        self._vocabulary = Vocabulary.from_tokenizer(self.tokenizer, len(self.tokenizer))
        warm_up(self._vocabulary)
        warm_up_formats(self._vocabulary)

    def compile_grammar(self, schema: Any) -> None:
        """Compile a JSON Schema for the next texts. GrammarError is raised if the schema is rejected.

        Args:
            schema: The JSON Schema.
        """
        assert self._vocabulary is not None, "init() comes first"
        specification = {"type": "json_schema", "schema": schema}
        self._fsm = compile_grammar(specification, self._vocabulary, options=self._options)
        self.reset()

    def reset(self) -> None:
        """Reset to the beginning of a text."""
        assert self._fsm is not None, "compile_grammar() comes first"
        self._state = self._fsm.initial_state

    def compute_mask(self) -> None:
        """Compute the mask of the current state, for `commit_token`."""
        assert self._fsm is not None
        self._row = self._fsm.allowed_mask(self._state)

    def commit_token(self, token: int) -> bool:
        """Accept a token if the mask of the last `compute_mask` allows it. Return whether it is allowed."""
        assert self._fsm is not None
        if not self._row[token // 32] >> np.uint32(token % 32) & 1:
            return False
        self._state = self._fsm.next_state(self._state, token)
        return True

    def log_single(self, text: str) -> None:
        """Print a text to stderr, unless the runner runs several processes."""
        if not self.multi:
            print(text, file=sys.stderr)


def main() -> None:
    """Parse the command line, and start the runner of the checkout with Turnstile as its engine."""
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
