"""Reports on sampled tokens that a request can turn on: log-probabilities, and diagnostics of the mask.

Log-probabilities are the model's own after the mask, before bias, penalties, temperature and truncation. The
probabilities of the allowed tokens add up to 1. Values named `raw` are before the mask.

Reports are computed separately from sampling: a sequence without reports costs nothing, and reports never change a
token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_workers.model.output_head import OutputHead
from gpu_workers.sampling.allowed_tokens import unpack
from gpu_workers.sampling.sampler import Draw
from grammar_workers import Vocabulary

# Number of most likely tokens that diagnostics list, before and after the mask.
DIAGNOSTIC_CHOICES = 5


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of one token.

    Attributes:
        token_id: The token.
        logprob: Value after the mask, before temperature and other sampling settings.
        raw_logprob: Value before the mask; None unless the request has `raw_logprobs`.
    """

    token_id: int
    logprob: float
    raw_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class StepDiagnostics:
    """Effect of the mask on the sampling of one token.

    Attributes:
        allowed: Number of allowed tokens; None without a grammar.
        rejection_mass: Probability, in [0, 1], that the model gives to disallowed tokens.
        raw_choices: Most likely tokens before the mask, best first; at most `DIAGNOSTIC_CHOICES`.
        masked_choices: Most likely tokens after the mask, best first; at most `DIAGNOSTIC_CHOICES`.
    """

    allowed: int | None
    rejection_mass: float
    raw_choices: list[TokenLogprob]
    masked_choices: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Report on one sampled token.

    Attributes:
        drawn: The sampled token.
        top: The most likely tokens after the mask, best first; as many as the request's `logprobs`, or fewer if the
            mask allows fewer.
        diagnostics: Effect of the mask; None unless the request has `diagnostics`.
        probe: Values for beam search or conditional sampling, as a dict; None unless the request has `probe`.
            `log_mass` is the natural logarithm of the probability that the model, at the request's temperature, gives
            to all allowed tokens together. `only_end` is true if all allowed tokens are end tokens.
    """

    drawn: TokenLogprob
    top: list[TokenLogprob]
    diagnostics: StepDiagnostics | None = None
    probe: dict[str, Any] | None = None


def reports(
    head: OutputHead, hidden_states: Tensor, draws: Sequence[Draw], token_ids: Sequence[int]
) -> list[TokenReport | None]:
    """Return log-probabilities and diagnostics of sampled tokens, for requests that need them.

    Args:
        head: Output head of the model.
        hidden_states: Hidden state from which each token was sampled, [n, H].
        draws: Sampling inputs of each token.
        token_ids: The sampled tokens.

    Returns:
        One report per token; None for requests without `logprobs`, `diagnostics` and `probe`.
    """
    asking = [i for i, draw in enumerate(draws) if draw.sampling.reports]
    if not asking:
        return [None] * len(draws)
    made = _reports(head, hidden_states[asking], [draws[i] for i in asking], [token_ids[i] for i in asking])
    by_row = dict(zip(asking, made, strict=True))
    return [by_row.get(i) for i in range(len(draws))]


@torch.inference_mode()
def _reports(
    head: OutputHead, hidden_states: Tensor, draws: Sequence[Draw], token_ids: Sequence[int]
) -> list[TokenReport]:
    """Return reports on tokens of requests that all have reports."""
    logits = head.logits(hidden_states)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    raw = logits.log_softmax(-1)
    constrained = [i for i, draw in enumerate(draws) if draw.allowed is not None]
    allowed_mass = torch.zeros(len(draws), dtype=torch.float64)  # logarithm
    masked = raw
    log_masses: dict[int, float] = {}
    if constrained:
        rows = [draw.allowed for draw in draws if draw.allowed is not None]
        index = torch.tensor(constrained, device=raw.device)
        allow = unpack(rows, raw.shape[1], raw.device)
        kept = raw[index].masked_fill(~allow, -torch.inf)
        mass = kept.logsumexp(-1, keepdim=True)
        masked = raw.index_copy(0, index, kept - mass)
        allowed_mass[constrained] = mass[:, 0].double().cpu()
        if probing := [row for row, i in enumerate(constrained) if draws[i].sampling.probe]:
            probed = [constrained[row] for row in probing]
            temperatures = [draws[i].sampling.temperature or 1.0 for i in probed]
            log_masses = dict(zip(probed, _log_masses(logits[probed], allow[probing], temperatures), strict=True))
    drawn = torch.tensor(token_ids, device=raw.device)[:, None]
    before, after = raw.gather(1, drawn)[:, 0].tolist(), masked.gather(1, drawn)[:, 0].tolist()
    return [
        _one(
            draw,
            TokenLogprob(token_id, after[i], before[i] if draw.sampling.raw_logprobs else None),
            raw[i],
            masked[i],
            float(allowed_mass[i]),
            log_masses.get(i, 0.0),
        )
        for i, (draw, token_id) in enumerate(zip(draws, token_ids, strict=True))
    ]


def _log_masses(logits: Tensor, allow: Tensor, temperatures: list[float]) -> list[float]:
    """Return the logarithm of the probability of the allowed tokens per sequence.

    logits: [n, V]; allow: bool [n, V].
    """
    scaled = logits.double() / torch.tensor(temperatures, dtype=torch.float64, device=logits.device)[:, None]
    masses = scaled.masked_fill(~allow, -torch.inf).logsumexp(-1) - scaled.logsumexp(-1)
    return masses.clamp(max=0).tolist()  # by rounding, the part can exceed the whole


class TokenNames:
    """Representation of tokens in responses: text and bytes of ordinary tokens, the name of special tokens.

    Args:
        vocabulary: Vocabulary of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._special = {token_id: name for name, token_id in vocabulary.special_tokens.items()}

    def name(self, token_id: int) -> dict[str, Any]:
        """Return ID, text and bytes of a token as plain data.

        Args:
            token_id: The token.

        Returns:
            A dict with `token_id`, `text` (with U+FFFD where the bytes are not whole characters) and `bytes` (list of
            integers). For a special token, `text` is its name and `bytes` is empty.
        """
        data = self._vocabulary.token_bytes(token_id)
        text = data.decode("utf-8", "replace") if data else self._special.get(token_id, "")
        return {"token_id": token_id, "text": text, "bytes": list(data)}

    def describe(self, report: TokenReport, complete: bool = False, **circumstances: Any) -> dict[str, Any]:
        """Return the report on a token as plain data, as responses contain it.

        Args:
            report: The report.
            complete: True if the grammar accepts the output without the token. Only used if `report.probe` is set.
            **circumstances: Further fields for `diagnostics`, such as `state` (the grammar state).

        Returns:
            A dict with `token_id`, `text`, `bytes` and `logprob` of the token, and `top`, a list of dicts with these
            four fields for the most likely tokens. `raw_logprob`, `probe` and `diagnostics` are present if the report
            has them.
        """
        described = {**self._choice(report.drawn), "top": self._choices(report.top)}
        if report.probe is not None:
            described["probe"] = {**report.probe, "complete": complete}
        if (step := report.diagnostics) is not None:
            described["diagnostics"] = {
                **circumstances,
                "forced": step.allowed == 1,
                "allowed": step.allowed,
                "rejection_mass": step.rejection_mass,
                "raw_choices": self._choices(step.raw_choices),
                "masked_choices": self._choices(step.masked_choices),
            }
        return described

    def _choices(self, choices: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [self._choice(choice) for choice in choices]

    def _choice(self, choice: TokenLogprob) -> dict[str, Any]:
        raw = {} if choice.raw_logprob is None else {"raw_logprob": choice.raw_logprob}
        return {**self.name(choice.token_id), "logprob": choice.logprob, **raw}


def _one(
    draw: Draw, drawn: TokenLogprob, raw: Tensor, masked: Tensor, allowed_mass: float, log_mass: float
) -> TokenReport:
    sampling = draw.sampling
    count = None if draw.allowed is None else draw.allowed.count
    diagnostics = None
    if sampling.diagnostics:
        diagnostics = StepDiagnostics(
            allowed=count,
            rejection_mass=max(0.0, -math.expm1(allowed_mass)),
            raw_choices=_top(raw, DIAGNOSTIC_CHOICES),
            masked_choices=_top(masked, DIAGNOSTIC_CHOICES),
        )
    probe = None
    if sampling.probe:
        probe = {"log_mass": log_mass, "only_end": draw.allowed is not None and draw.allowed.only_end}
    return TokenReport(
        drawn, _top(masked, sampling.logprobs or 0, raw if sampling.raw_logprobs else None), diagnostics, probe
    )


def _top(logprobs: Tensor, many: int, raw: Tensor | None = None) -> list[TokenLogprob]:
    """Return the most likely allowed tokens. Tokens of equal probability are ordered by ID."""
    if many == 0:
        return []
    values, ids = logprobs.topk(min(many, len(logprobs)))
    before = [None] * len(ids) if raw is None else raw[ids].tolist()
    choices = map(TokenLogprob, ids.tolist(), values.tolist(), before)
    allowed = [choice for choice in choices if choice.logprob != float("-inf")]
    return sorted(allowed, key=lambda choice: (-choice.logprob, choice.token_id))
