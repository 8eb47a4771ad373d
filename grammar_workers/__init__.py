"""The grammar engine: specifications in, token masks out. A plain library: it imports neither Ray nor torch.

The names below are imported when they are first used: who wants a key or an option need not wait for numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grammar_workers.compile import compile_grammar, warm_up, warm_up_formats
    from grammar_workers.errors import GrammarError
    from grammar_workers.keys import grammar_key
    from grammar_workers.matching.token_fsm import TokenFSM
    from grammar_workers.options import GrammarOptions, Limits
    from grammar_workers.vocabulary.vocabulary import Vocabulary

__all__ = [
    "GrammarError",
    "GrammarOptions",
    "Limits",
    "TokenFSM",
    "Vocabulary",
    "compile_grammar",
    "grammar_key",
    "warm_up",
    "warm_up_formats",
]
_MODULES = {
    "GrammarError": "errors",
    "GrammarOptions": "options",
    "Limits": "options",
    "TokenFSM": "matching.token_fsm",
    "Vocabulary": "vocabulary.vocabulary",
    "compile_grammar": "compile",
    "grammar_key": "keys",
    "warm_up": "compile",
    "warm_up_formats": "compile",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
