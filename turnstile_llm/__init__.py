"""Python API of Turnstile: token masks for constrained decoding, in any inference engine.

    vocabulary = Vocabulary.from_pretrained("models/turnstile-tiny")
    grammar = compile(Regex("[a-z]+"), vocabulary)
    matcher = grammar.matcher()
    matcher.fill_bitmask(bitmask, 0)
    matcher.accept(token)

`docs/library.md` has an example of each name. `turnstile_llm.transformers`, `turnstile_llm.llama_cpp` and
`turnstile_llm.mlx` are adapters for `transformers`, llama-cpp-python and mlx-lm. The names in `__all__` are imported
when they are first used, so that the import of this package is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import grammar_workers

if TYPE_CHECKING:
    from grammar_workers import GrammarError, GrammarOptions, Vocabulary
    from grammar_workers.vocabulary.token_bytes import UnsupportedTokenizerError
    from turnstile_llm.compilation import compile, compile_async
    from turnstile_llm.constraints import GBNF, AllOf, BannedWords, Choice, Lark, Regex, StructuralTag
    from turnstile_llm.grammar import Grammar, Matcher, MatcherError, WidthError, apply_bitmask, fill_bitmasks

__all__ = ["GBNF", "AllOf", "BannedWords", "Choice", "Grammar", "GrammarError", "GrammarOptions", "Lark", "Matcher"]
__all__ += ["MatcherError", "Regex", "StructuralTag", "UnsupportedTokenizerError", "Vocabulary", "WidthError"]
__all__ += ["apply_bitmask", "compile", "compile_async", "fill_bitmasks"]

# Module -> public names that it defines.
_NAMES = {
    "grammar_workers": ("GrammarError", "GrammarOptions", "Vocabulary"),
    "grammar_workers.vocabulary.token_bytes": ("UnsupportedTokenizerError",),
    "turnstile_llm.compilation": ("compile", "compile_async"),
    "turnstile_llm.constraints": ("GBNF", "AllOf", "BannedWords", "Choice", "Lark", "Regex", "StructuralTag"),
    "turnstile_llm.grammar": ("Grammar", "Matcher", "MatcherError", "WidthError", "apply_bitmask", "fill_bitmasks"),
}

if "compile_grammar" not in dir(grammar_workers):
    raise ImportError(f"turnstile_llm needs its own grammar_workers: remove or rename {[*grammar_workers.__path__]}")

if not TYPE_CHECKING:  # a type checker then reports unknown names

    def __getattr__(name: str) -> Any:
        for module, names in _NAMES.items():
            if name in names:
                return globals().setdefault(name, getattr(importlib.import_module(module), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
