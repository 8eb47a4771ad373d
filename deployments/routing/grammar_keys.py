"""From a constraint to the grammar key under which the tiers know it."""

from __future__ import annotations

import asyncio
import contextlib
import json

from deployments.http.errors import ApiError, Places
from deployments.routing.tiers import Grammar, Tiers
from deployments.status.seen_grammars import described
from grammar_workers import GrammarError, GrammarOptions
from grammar_workers.errors import LimitExceededError
from grammar_workers.keys import canonical_bytes, content_key
from grammar_workers.options import Limits, OnUnsupported
from grammar_workers.service.job import job
from grammar_workers.specification import GrammarSpecification

MAX_INLINE_BYTES = 1 << 16
"""Larger specifications would keep the event loop for more than some milliseconds."""


class GrammarKeys:
    """Derives keys with what they depend on besides the specification, which the grammar tier tells once."""

    def __init__(self, tiers: Tiers, *, allow_unenforced: bool) -> None:
        self._tiers = tiers
        self._allow_unenforced = allow_unenforced
        self._settings: tuple[str, GrammarOptions] | None = None

    async def grammar(
        self,
        specification: GrammarSpecification,
        param: str,
        places: Places = (),
        *,
        on_unsupported: OnUnsupported | None,
    ) -> Grammar:
        """`param` is the HTTP field it came from, `places` as in `ApiError.of_grammar`; None: as the grammar tier does.

        Raises `ApiError` 400 for a malformed specification, and where the server does not allow `on_unsupported`.
        """
        if on_unsupported == "report" and not self._allow_unenforced:
            message = "this server enforces every keyword or refuses it (its setting router.allow_unenforced is false)"
            raise ApiError(400, message, param="on_unsupported", code="unenforced_not_allowed")
        if self._settings is None:
            info = await self._tiers.compiler_info()
            self._settings = info["vocabulary_fingerprint"], GrammarOptions.model_validate(info["options"])
        fingerprint, options = self._settings
        given = {} if on_unsupported in (None, options.on_unsupported) else {"on_unsupported": on_unsupported}
        options = options.model_copy(update=given)
        try:
            canonical = await _canonical_bytes(specification, options.on_unsupported == "refuse")
        except GrammarError as error:
            raise ApiError.of_grammar(
                error.to_dict(), param=param, places=places, specification=specification.model_dump(by_alias=True)
            ) from error
        key = content_key(canonical, fingerprint, options)
        return Grammar(key, job(json.loads(canonical), given), param, places, seen=described(specification))


async def _canonical_bytes(specification: GrammarSpecification, strict: bool) -> bytes:
    """Raises `GrammarError`. What takes long does so in a thread."""
    with contextlib.suppress(LimitExceededError):
        return canonical_bytes(specification, MAX_INLINE_BYTES, strict=strict)
    return await asyncio.to_thread(canonical_bytes, specification, Limits().max_specification_bytes, strict=strict)
