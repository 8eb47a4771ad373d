"""Options of a grammar (`GrammarOptions`), and limits on the work and memory of its compilation (`Limits`)."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field

from grammar_workers.validation import DocumentedModel, renamed_value

OnUnsupported = Annotated[Literal["reject", "report"], renamed_value("refuse", "reject")]


class GrammarOptions(DocumentedModel, extra="forbid", frozen=True):
    """Options for the format of the output. They are part of the grammar key (the hash that identifies a grammar)."""

    whitespace: Literal["compact", "flexible"] = "compact"
    """`compact`: fixed separators `", "` and `": "`. `flexible`: any JSON whitespace between tokens."""
    whitespace_limit: int = Field(default=8, ge=1, le=64)
    """Maximum number of whitespace characters between two JSON tokens if `whitespace` is `flexible`."""
    property_order: Literal["declared", "any"] = "declared"
    """`declared`: properties have the order in which the schema first names them. Undeclared properties come last. A
    pattern with few matches, such as `^[ab]$`, also declares its names if `minProperties` or a similar keyword counts
    properties. `any`: properties have any order, and each declared name occurs at most once. An object keeps the
    declared order if it declares more than 62 names, or if its alternatives differ in too many names; `grammar.notes`
    then reports this."""
    number_spelling: Literal["plain", "any"] = "plain"
    """`plain`: an integer has no fraction. `any`: an integer may be written as 1.0 (except in draft 4), also if `const`
    or `enum` lists 1. With either value, an integer has no exponent, and a number has at most 308 digits before the
    point."""
    escapes: Literal["minimal", "any"] = "minimal"
    r"""`minimal`: strings are written as by `json.dumps(..., ensure_ascii=False)`, which escapes a character only if
    JSON requires it. `any`: strings may contain every escape of JSON, including `\u00e9` and surrogate pairs.
    Exceptions are strings that the schema lists, property names, and all strings if the request has banned words. If
    the vocabulary has no tokens for a character, strings may contain it only as an escape. So with `minimal`, strings
    cannot contain the character, unless JSON requires the escape. With `any`, the mask of a free string takes longer,
    because less of it is precomputed."""
    additional_properties: bool = True
    """Value of `additionalProperties` in objects without this keyword. JSON Schema defines `true`. `false`: only
    declared properties are allowed."""
    format: Literal["assert", "annotate"] = "assert"
    """`assert`: outputs match the keyword `format`. `annotate`: the keyword has no effect. An unknown format never has
    an effect."""
    on_unsupported: OnUnsupported = "reject"
    """Effect of a keyword of a JSON Schema that cannot be enforced. `reject`: the schema is rejected. `report`: the
    response lists the keyword as `unenforced`, with its JSON Pointer. The other keywords are enforced, except keywords
    that would then disallow valid outputs (`docs/constraints.md`)."""

    def key_text(self) -> str:
        """Return the options as JSON text. The grammar key is a hash of this text and other data.

        `on_unsupported` is omitted if it has its default, so that keys of versions without this option are still valid.
        """
        later = {"on_unsupported"} if self.on_unsupported == "reject" else set()
        return self.model_dump_json(exclude=later)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one compilation and of one automaton. LimitExceededError names the limit that was exceeded.

    Attributes:
        max_specification_bytes: Maximum number of bytes of the normalized specification as JSON.
        max_nesting: Maximum nesting depth of the specification, and of groups in a regular expression.
        max_states: Maximum number of states of the byte automaton.
        max_regex_states: Maximum number of states of the DFA of one regular expression. The product of several DFAs
            (their intersection, for example) may have 15 times as many.
        max_steps: Maximum number of steps of one compilation. A step is a unit of work, at most half a microsecond.
            The number of steps does not depend on the speed of the machine.
        max_fsm_bytes: Maximum memory of one TokenFSM in bytes, with its visited states and their masks.
    """

    max_specification_bytes: int = 1 << 20
    max_nesting: int = 100
    max_states: int = 2_000_000
    max_regex_states: int = 20_000
    max_steps: int = 4_000_000
    max_fsm_bytes: int = 512 << 20

    @property
    def max_pattern_characters(self) -> int:
        """Maximum number of characters of a regular expression after `a{3}` is expanded to `aaa`.

        Each character may become a state, so longer expressions rarely have at most `max_regex_states` states.
        """
        return 2 * self.max_regex_states
