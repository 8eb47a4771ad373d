"""From a constraint to the grammar key under which the tiers know it."""

from __future__ import annotations

from deployments.errors import ApiError
from deployments.generation import Grammar, Tiers
from grammar_workers import GrammarError, GrammarOptions, grammar_key
from grammar_workers.specification import GrammarSpecification


class GrammarKeys:
    """Derives keys with what they depend on besides the specification, which the grammar tier tells once."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._settings: tuple[str, GrammarOptions] | None = None

    async def grammar(
        self, specification: GrammarSpecification, param: str, places: tuple[tuple[str, str], ...] = ()
    ) -> Grammar:
        """`param` is the HTTP field it came from, `places` as in `ApiError.of_grammar`.

        Raises `ApiError` 400 for a malformed specification.
        """
        if self._settings is None:
            info = await self._tiers.compiler_info()
            self._settings = info["vocabulary_fingerprint"], GrammarOptions.model_validate(info["options"])
        fingerprint, options = self._settings
        try:
            key = grammar_key(specification, fingerprint, options)
        except GrammarError as error:
            raise ApiError.of_grammar(error.to_dict(), param=param, places=places) from error
        return Grammar(key, specification.model_dump(by_alias=True), param, places)
