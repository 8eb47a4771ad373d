"""The reference of supported features is current, complete, and says what the compiler does."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generator.grammar_features import reference
from grammar_workers import GrammarOptions, Limits
from grammar_workers.languages.json_schema.read.formats import STRING_FORMATS
from grammar_workers.languages.json_schema.read.keywords import KEYWORDS, RESTRICTIONS
from grammar_workers.specification import SPECIFICATION

DOCUMENT = Path(__file__).parents[2] / "docs" / "features.md"


def test_the_committed_reference_is_current() -> None:
    assert DOCUMENT.read_text() == reference(), "run: make reference"


@pytest.mark.parametrize(
    "name",
    [
        *KEYWORDS,
        *STRING_FORMATS,
        *GrammarOptions.model_fields,
        *Limits.__dataclass_fields__,
        *SPECIFICATION.json_schema()["discriminator"]["mapping"],
    ],
)
def test_everything_is_in_it(name: str) -> None:
    assert f"| `{name}` |" in reference()


def test_remarks_are_about_something() -> None:
    assert RESTRICTIONS.keys() <= KEYWORDS.keys()
    assert all(found.wider for found in STRING_FORMATS.values() if found.narrower)
