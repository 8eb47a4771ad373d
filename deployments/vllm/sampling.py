"""A generation request -> vLLM's sampling parameters; what vLLM cannot do is refused by name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from gpu_workers.request import GenerationRequest, RequestError, SamplingParameters
from gpu_workers.vllm.reference import Reference

REFUSED = {
    "beam_search": "searching for a likely output (`beam_search`)",
    "conditional_sampling": "drawing from the model given that the output is valid (`conditional_sampling`)",
    "diagnostics": "telling for each token what the mask did (`diagnostics`)",
    "raw_logprobs": "log-probabilities before the mask (`raw_logprobs`)",
    "banned_words": "taking tokens back for `banned_words`; the router makes a constraint of them",
}
"""Settings of a request that this engine has no way to honour, and what they would be."""

DIFFERENT = {
    "temperature": "At most 2, and one above 0 is at least 0.01.",
    "logprobs": "At most `max_logprobs` of the engine arguments.",
    "seed": "Other tokens than the native engine's. A resumed output goes on with other random numbers than it would "
    "have had; at temperature 0 with the same tokens.",
    "presence_penalty": "Forgets the tokens before a resumption.",
    "frequency_penalty": "Forgets the tokens before a resumption.",
}
"""Settings that mean something else than in the native engine, and what."""


SAME = (
    *("temperature", "top_p", "top_k", "min_p", "logprobs"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Settings that vLLM takes under the same name, as they are."""


def check_supported(sampling: SamplingParameters) -> None:
    """Raises RequestError naming the first setting that vLLM cannot honour."""
    for name, what in REFUSED.items():
        if getattr(sampling, name):
            message = f"this server's engine, vLLM, does not support {what}"
            raise RequestError(message, code="unsupported_by_engine", param=name)


def sampling_params(
    request: GenerationRequest, left: int, end_token_ids: tuple[int, ...], begun: Sequence[int] = ()
) -> Any:
    """`vllm.SamplingParams` for the rest of the output: at most `left` tokens behind `emitted_token_ids`.

    `end_token_ids`: the model's own. `begun`: tokens before the output that its automaton accepts first. Stop
    strings are not vLLM's to look for: it does not see any text.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    sampling, emitted = request.sampling, [*begun, *request.emitted_token_ids]
    most = left + len(emitted)
    # vLLM's own ignore_eos would let end tokens be drawn in the middle.
    least = most if sampling.ignore_eos else min(sampling.min_tokens + len(begun), most)
    stops: tuple[int, ...] = () if sampling.ignore_eos else sampling.stop_token_ids
    grammar = None
    if request.grammar is not None:
        budget = most if sampling.finish_within_budget else None
        reference = Reference(request.grammar.key, least, tuple(emitted), budget)
        grammar = StructuredOutputsParams(grammar=str(reference))
        # The mask keeps to the least number of tokens; stop tokens count where the grammar lets the output end alone.
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
    """Of its own for each choice and each resumption: vLLM begins the random numbers anew."""
    words = f"{request.sampling.seed % 2**64} {request.choice_index} {len(request.emitted_token_ids)}"
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") >> 1
