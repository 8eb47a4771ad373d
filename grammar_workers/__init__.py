"""The grammar engine: specifications in, token masks out. A plain library: it imports neither Ray nor torch."""

from grammar_workers.compile import compile_grammar, warm_up, warm_up_formats
from grammar_workers.errors import GrammarError
from grammar_workers.keys import grammar_key
from grammar_workers.matching.kernels import cache  # noqa: F401 - first: says where the kernels of all others are kept
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
