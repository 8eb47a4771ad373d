"""Grammar library: compiles constraints (JSON Schema, regex, grammar, ...) to automata that compute token masks.

    fsm = compile_grammar({"type": "regex", "pattern": "[a-z]+"}, vocabulary)
    mask = fsm.allowed_mask(fsm.initial_state)

A token mask is the set of tokens that the model may generate next. The library imports neither Ray nor torch. The names
in `__all__` are imported when they are first used. So a caller that needs only a grammar key or an option does not wait
for the import of numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grammar_workers.compile import compile_grammar as compile_grammar
    from grammar_workers.compile import warm_up as warm_up
    from grammar_workers.compile import warm_up_formats as warm_up_formats
    from grammar_workers.errors import GrammarError as GrammarError
    from grammar_workers.keys import grammar_key as grammar_key
    from grammar_workers.matching.token_fsm import TokenFSM as TokenFSM
    from grammar_workers.options import GrammarOptions as GrammarOptions
    from grammar_workers.options import Limits as Limits
    from grammar_workers.vocabulary.vocabulary import Vocabulary as Vocabulary

# Public name -> module that defines it.
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
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
