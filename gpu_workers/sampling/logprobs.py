"""What a request may ask to know about its tokens: log-probabilities, and diagnostics of the mask.

Log-probabilities are the model's own after the mask (forbidden tokens have none, the allowed ones sum to 1), before
bias, penalties, temperature and truncation; `raw` ones are before the mask, too. Work is done for asking rows only, and
apart from sampling: a row that does not ask costs nothing, and asking never changes a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_workers.model.output_head import OutputHead
from gpu_workers.sampling.allowed_tokens import AllowedTokens, unpack
from gpu_workers.sampling.sampler import Draw
from grammar_workers import Vocabulary

DIAGNOSTIC_CHOICES = 5
"""How many of the likeliest tokens diagnostics list, before and after the mask."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's natural log-probability after the mask, and before it where that was asked for."""

    token_id: int
    logprob: float
    raw_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class StepDiagnostics:
    """What the mask did at one step.

    `allowed`: how many tokens; None without a grammar. `rejection_mass`: probability that the model gave to forbidden
    tokens. `raw_choices` and `masked_choices`: the likeliest tokens before and after the mask.
    """

    allowed: int | None
    rejection_mass: float
    raw_choices: list[TokenLogprob]
    masked_choices: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class TokenReport:
    """The log-probabilities of one drawn token, and what else its request wants to know of its step.

    Attributes:
        top: The likeliest tokens after the mask.
        probe: For a search (`SamplingParameters.probe`): `log_mass`, the logarithm of the probability that the model,
            at the request's temperature, gives to all allowed tokens together; `only_end`, true if all of them are
            end tokens.
    """

    drawn: TokenLogprob
    top: list[TokenLogprob]
    diagnostics: StepDiagnostics | None = None
    probe: dict[str, Any] | None = None


def reports(
    head: OutputHead, hidden_states: Tensor, draws: Sequence[Draw], token_ids: Sequence[int]
) -> list[TokenReport | None]:
    """Reports on the drawn `token_ids`, None for rows that do not ask; hidden_states [n, H], one row per draw."""
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
    """`reports` for rows that all ask."""
    logits = head.logits(hidden_states)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    raw = logits.log_softmax(-1)
    constrained = [i for i, draw in enumerate(draws) if draw.allowed is not None]
    allowed_mass = torch.zeros(len(draws), dtype=torch.float64)  # logarithm
    masked = raw
    log_masses: dict[int, float] = {}
    if constrained:
        rows = [_allowed(draws[i]) for i in constrained]
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
    """The logarithm of the allowed tokens' probability in each row; logits [n, V], allow bool [n, V]."""
    scaled = logits.double() / torch.tensor(temperatures, dtype=torch.float64, device=logits.device)[:, None]
    masses = scaled.masked_fill(~allow, -torch.inf).logsumexp(-1) - scaled.logsumexp(-1)
    return masses.clamp(max=0).tolist()  # rounding may make more of a part than of the whole


class TokenNames:
    """How tokens are named on the wire: text and bytes of ordinary ones, the name of special ones."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._special = {token_id: name for name, token_id in vocabulary.special_tokens.items()}

    def name(self, token_id: int) -> dict[str, Any]:
        """`text` has U+FFFD where the bytes are no whole characters; special tokens add no bytes to the output."""
        data = self._vocabulary.token_bytes(token_id)
        text = data.decode("utf-8", "replace") if data else self._special.get(token_id, "")
        return {"token_id": token_id, "text": text, "bytes": list(data)}

    def describe(self, report: TokenReport, complete: bool = False, **circumstances: Any) -> dict[str, Any]:
        """The report as plain data.

        `complete`, true if the output could have ended before the token, is added for a search; `circumstances` of the
        drawing are added to the diagnostics.
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
    """The likeliest tokens, those of equal probability by id; forbidden ones are left out."""
    if many == 0:
        return []
    values, ids = logprobs.topk(min(many, len(logprobs)))
    before = [None] * len(ids) if raw is None else raw[ids].tolist()
    choices = map(TokenLogprob, ids.tolist(), values.tolist(), before)
    allowed = [choice for choice in choices if choice.logprob != float("-inf")]
    return sorted(allowed, key=lambda choice: (-choice.logprob, choice.token_id))


def _allowed(draw: Draw) -> AllowedTokens:
    assert draw.allowed is not None
    return draw.allowed
