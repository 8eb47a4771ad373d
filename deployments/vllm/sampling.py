"""Conversion of Turnstile's generation requests to vLLM's sampling parameters, and a list of unsupported settings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from gpu_workers.request import GenerationRequest, RequestError, SamplingParameters
from gpu_workers.vllm.reference import Reference

# Settings that vLLM does not support -> the feature that they stand for, for the error message.
REFUSED = {
    "beam_search": "beam search (`beam_search`)",
    "conditional_sampling": "conditional sampling (`conditional_sampling`)",
    "diagnostics": "reports about the mask of each token (`diagnostics`)",
    "raw_logprobs": "log-probabilities before the mask (`raw_logprobs`)",
    "banned_words": "rollback of tokens that form a banned word (`banned_words`)",
}

# Settings whose meaning differs from that in the native engine -> the difference.
DIFFERENT = {
    "temperature": "The maximum is 2. vLLM raises values between 0 and 0.01 to 0.01.",
    "logprobs": "The maximum is `max_logprobs` of the engine arguments.",
    "seed": "vLLM and the native engine sample different tokens. If another replica continues an output, it uses other "
    "random numbers. At temperature 0, the tokens do not change.",
    "presence_penalty": "If another replica continues an output, the earlier output tokens have no effect.",
    "frequency_penalty": "If another replica continues an output, the earlier output tokens have no effect.",
    # The engine itself rejects this setting, which the router never sends to it.
    "banned_words": "The router converts the words to a constraint, so the mask excludes them.",
}


# Settings that vLLM accepts under the same name with the same meaning.
SAME = (
    *("temperature", "top_p", "top_k", "min_p", "logprobs"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def check_supported(sampling: SamplingParameters) -> None:
    """Check that vLLM supports all sampling settings of a request.

    Args:
        sampling: Sampling settings of the request.

    Raises:
        RequestError: 400 if the request uses an unsupported setting (a key of `REFUSED`). The error names the setting.
    """
    for name, what in REFUSED.items():
        if getattr(sampling, name):
            message = f"this server's engine, vLLM, does not support {what}"
            raise RequestError(message, code="unsupported_by_engine", param=name)


def sampling_params(
    request: GenerationRequest, left: int, end_token_ids: tuple[int, ...], begun: Sequence[int] = ()
) -> Any:
    """Convert a generation request to `vllm.SamplingParams`.

    The result has no stop strings, because here vLLM returns tokens only, and Turnstile converts them to text.

    Args:
        request: The request. Its `emitted_token_ids` are output tokens that the client has already received. vLLM gets
            these tokens as part of the prompt.
        left: Maximum number of tokens to generate now, not counting `emitted_token_ids`.
        end_token_ids: IDs of the end tokens of the model.
        begun: Last tokens of the prompt, if the constraint also applies to the end of the prompt. The automaton accepts
            these tokens first. Empty: the constraint applies only to the output.

    Returns:
        A new `vllm.SamplingParams`. If the request has a constraint, it contains the reference to the compiled grammar,
        `turnstile:KEY`.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    sampling, emitted = request.sampling, [*begun, *request.emitted_token_ids]
    most = left + len(emitted)
    # With vLLM's own ignore_eos, end tokens could be sampled within the output.
    least = most if sampling.ignore_eos else min(sampling.min_tokens + len(begun), most)
    stops: tuple[int, ...] = () if sampling.ignore_eos else sampling.stop_token_ids
    grammar = None
    if request.grammar is not None:
        budget = most if sampling.finish_within_budget else None
        reference = Reference(request.grammar.key, least, tuple(emitted), budget)
        grammar = StructuredOutputsParams(grammar=str(reference))
        # The mask enforces the minimum number of tokens. Stop tokens count only where the grammar allows an end.
        least, stops = 0, ()
    return SamplingParams(
        max_tokens=left,
        min_tokens=max(least - len(emitted), 0),
        **{name: getattr(sampling, name) for name in SAME},
        logit_bias=sampling.logit_bias or None,
        seed=_seed(request),
        stop_token_ids=[*end_token_ids, *stops],
        structured_outputs=grammar,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )


def _seed(request: GenerationRequest) -> int:
    """Return a seed that differs for each choice and each resumption, because vLLM restarts its random numbers."""
    words = f"{request.sampling.seed % 2**64} {request.choice_index} {len(request.emitted_token_ids)}"
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1
