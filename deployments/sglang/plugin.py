"""Plugin of SGLang that registers Turnstile's grammar backend.

SGLang calls `register` in each of its processes, because the package has the entry point `sglang.srt.plugins`.
"""

from __future__ import annotations

from typing import Any

from deployments.version import version
from deployments.vllm.interface import Methods, check_methods
from grammar_workers.logs import get_logger

logger = get_logger("sglang.turnstile")

NAME = "turnstile"
_METHODS: Methods = {
    "BaseGrammarObject": {
        "accept_token": ("self", "token"),
        "rollback": ("self", "k"),
        "is_terminated": ("self",),
        "allocate_vocab_mask": ("self", "vocab_size", "batch_size", "device"),
        "fill_vocab_mask": ("self", "vocab_mask", "idx"),
        "reset_vocab_mask": ("vocab_mask",),
        "move_vocab_mask": ("vocab_mask", "device"),
        "apply_vocab_mask": ("logits", "vocab_mask"),
        "copy": ("self",),
        "try_jump_forward": ("self", "tokenizer"),
    },
    "BaseGrammarBackend": {
        "_init_value_dispatch": ("self", "key", "require_reasoning"),
        "set_token_filter": ("self", "vocab_mask", "token_ids", "batch_idx", "is_allowed", "reset_vocab_mask"),
        "dispatch_json": ("self", "key_string"),
        "dispatch_regex": ("self", "key_string"),
        "dispatch_ebnf": ("self", "key_string"),
        "dispatch_structural_tag": ("self", "key_string"),
    },
    "InvalidGrammarObject": {"__init__": ("self", "error_message")},
}


def register() -> None:
    """Add the grammar backend `turnstile` to SGLang, so that `--grammar-backend turnstile` selects it.

    `UnknownInterfaceError` is raised if the installed version of SGLang is not supported.
    """
    from sglang.srt import server_args
    from sglang.srt.constrained import base_grammar_backend as base

    check_methods(base, _METHODS, "this SGLang")
    base.register_grammar_backend(NAME, _backend)
    if NAME not in server_args.GRAMMAR_BACKEND_CHOICES:
        server_args.add_grammar_backend_choices([NAME])


def _backend(server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Any = None) -> Any:
    """Return a warm backend. SGLang calls this function in a scheduler process if the backend is selected."""
    from sglang.srt.constrained import base_grammar_backend as base
    from sglang.srt.runtime_context import get_serving

    from deployments.sglang.backend import open_backend
    from deployments.sglang.ranks import NumberedExecutor, scheduler_ranks

    model = str(server_args.tokenizer_path or server_args.model_path)
    ranks = scheduler_ranks()
    backend = open_backend(base, model, vocab_size, eos_token_ids, ranks)
    logger.info("Turnstile computes the masks of SGLang: version=%s", version())
    serving = get_serving()
    if serving.reasoning_parser:
        backend = _behind_thoughts(backend, serving, tokenizer)
    if ranks is not None:
        backend.executor = NumberedExecutor(ranks)
    return backend


def _behind_thoughts(backend: Any, serving: Any, tokenizer: Any) -> Any:
    """Return a backend that does not constrain reasoning. SGLang wraps only its own backends in this way."""
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    parser = ReasoningParser(model_type=serving.reasoning_parser, stream_reasoning=False, tokenizer=tokenizer)
    if not parser.detector.get_think_end_token_ids(tokenizer):
        return backend
    return ReasonerGrammarBackend(backend, parser, tokenizer, enable_strict_thinking=serving.enable_strict_thinking)
