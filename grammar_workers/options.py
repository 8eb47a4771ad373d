"""What a caller may choose about a grammar (`GrammarOptions`, part of the key) and what it may cost (`Limits`)."""

from __future__ import annotations

import dataclasses
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

OnUnsupported = Literal["refuse", "report"]


class GrammarOptions(BaseModel):
    """Policies about spelling. They change the language, so they are part of the grammar key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    whitespace: Literal["compact", "flexible"] = Field(
        "compact",
        description='`compact`: fixed separators `", "` and `": "`. `flexible`: any JSON whitespace between tokens.',
    )
    whitespace_limit: int = Field(
        8,
        ge=1,
        le=64,
        description="The most whitespace characters in one gap when `whitespace` is `flexible`.",
    )
    property_order: Literal["declared", "any"] = Field(
        "declared",
        description="`declared`: properties come as the schema first names them, undeclared ones last; where they are "
        "counted (`minProperties` and the like), a pattern that few names match, such as `^[ab]$`, names these. `any`: "
        "in any order, declared names at most once each. An object that declares more than 62 names, or whose "
        "alternatives differ in too many of them, keeps the declared order; `notes` say so.",
    )
    number_spelling: Literal["plain", "any"] = Field(
        "plain",
        description="`plain`: an integer is never written with a fraction. `any`: 1.0 is an integer, too (not in "
        "draft 4), and equals a listed 1. An integer never has an exponent, and no number more than 308 digits "
        "before the point.",
    )
    escapes: Literal["minimal", "any"] = Field(
        "minimal",
        description="`minimal`: characters in strings stand for themselves, those that cannot have one spelling, as "
        "`json.dumps(..., ensure_ascii=False)` writes them. `any`: every escape that JSON knows, `\\u00e9` and "
        "surrogate pairs included, in strings that the schema does not list; property names stay minimal, and all "
        "strings beside banned words. A character must have a token or a minimal escape, too. Rows of "
        "free strings then cost a walk of the whole vocabulary each.",
    )
    additional_properties: bool = Field(
        True,
        description="What an absent `additionalProperties` means: true as the specification says, or closed.",
    )
    format: Literal["assert", "annotate"] = Field(
        "assert", description="Whether `format` constrains what is generated. Unknown formats are always annotations."
    )
    on_unsupported: OnUnsupported = Field(
        "refuse",
        description="A keyword of a JSON Schema that cannot be enforced: `refuse` the schema, or leave the keyword out "
        "and `report` it as `unenforced`, with its JSON Pointer. All other keywords are enforced, but those that would "
        "then forbid what the schema allows (`docs/constraints.md`).",
    )

    def key_text(self) -> str:
        """What stands for the options in a grammar key; an option that came later is told only where it is used."""
        later = {"on_unsupported"} if self.on_unsupported == "refuse" else set()
        return self.model_dump_json(exclude=later)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one compilation and of one automaton. Exceeding one raises `LimitExceededError` naming it."""

    max_specification_bytes: int = 1 << 20
    """Size of the specification as canonical JSON."""
    max_nesting: int = 100
    """Nesting depth of the specification itself, and of groups in a regular expression."""
    max_states: int = 2_000_000
    """States of the byte automaton."""
    max_regex_states: int = 20_000
    """States of one determinised regular expression; a product of some may have 15 times as many."""
    max_steps: int = 4_000_000
    """Elementary construction steps, the deterministic stand-in for compile time."""
    max_fsm_bytes: int = 512 << 20
    """Memory of one TokenFSM with all rows and configurations visited so far."""

    @property
    def max_pattern_characters(self) -> int:
        """Characters of a regular expression, counts written out: each may become a state, so few more are of use."""
        return 2 * self.max_regex_states
