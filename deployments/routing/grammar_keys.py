"""Computation of grammar keys in the router.

A grammar key is a hash that identifies a compiled grammar. It depends on the normalized specification (such as a JSON
Schema), the grammar options, the vocabulary of the model, and the version of the compiler. The router computes the key
as the compilers do. By the key, the router selects the compiler that has the grammar in its cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from deployments.generation import Grammar
from deployments.http.errors import ApiError, Places
from deployments.routing.tiers import Tiers
from deployments.status.seen_grammars import described
from grammar_workers import GrammarError, GrammarOptions
from grammar_workers.errors import LimitExceededError
from grammar_workers.keys import canonical_bytes, content_key
from grammar_workers.options import Limits, OnUnsupported
from grammar_workers.service.job import job
from grammar_workers.specification import GrammarSpecification

# Size in bytes above which a specification is normalized in a thread. It would block the event loop for milliseconds.
MAX_INLINE_BYTES = 1 << 16


class GrammarKeys:
    """Computes grammar keys: hashes of a constraint, the options of the grammar compiler, and the model's vocabulary.

    The fingerprint (hash) of the vocabulary and the default options are requested from a compiler once.

    Args:
        tiers: Client of the grammar compilers and the model replicas.
        allow_unenforced: True: a request may set `on_unsupported: report`. Schema keywords that cannot be enforced are
            then reported instead of rejected.
    """

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
        """Normalize a constraint and compute its grammar key (hash). Nothing is compiled.

        The first call requests data from a compiler. If that request fails, its `ApiError` is raised here.

        Args:
            specification: The constraint of a request, such as a JSON Schema or a regular expression.
            param: Field of the request body that contains the constraint. Errors name this field.
            places: Translation of JSON Pointers from the specification to the body, for errors (see
                `deployments.http.errors.in_the_body`).
            on_unsupported: Treatment of schema keywords that cannot be enforced. `reject`: the constraint is rejected
                when it is compiled. `report`: the keywords are reported. None: the default of the compilers
                (`compiler.options` in the config file).

        Returns:
            The constraint with its key and the normalized specification, for `Tiers.start_generation`.

        Raises:
            ApiError: 400 if `on_unsupported` is `report` and the server does not allow this value.
            ApiError.of_grammar: `ApiError` 400 if the specification is malformed or too large.
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
            canonical = await _canonical_bytes(specification, options.on_unsupported == "reject")
        except GrammarError as error:
            raise ApiError.of_grammar(
                error.to_dict(), param=param, places=places, specification=specification.model_dump(by_alias=True)
            ) from error
        key = content_key(canonical, fingerprint, options)
        return Grammar(key, job(json.loads(canonical), given), param, places, seen=described(specification))


async def _canonical_bytes(specification: GrammarSpecification, strict: bool) -> bytes:
    """Return the normalized specification. A large one is normalized in a thread. Raise `GrammarError` if malformed."""
    with contextlib.suppress(LimitExceededError):
        return canonical_bytes(specification, MAX_INLINE_BYTES, strict=strict)
    return await asyncio.to_thread(canonical_bytes, specification, Limits().max_specification_bytes, strict=strict)
