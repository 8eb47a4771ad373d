"""Pieces of pushdown automata that are laid out, kept and copied."""

from __future__ import annotations

from typing import Any

import pytest

from grammar_workers import compile_grammar
from grammar_workers.artifacts.lru import LeastRecentlyUsed
from grammar_workers.pushdown import shared
from tests.grammar_workers.vocabularies import bytes_vocabulary

SCHEMA: dict[str, Any] = {
    "properties": {
        "number": {"type": "number", "minimum": -3.5, "maximum": 12, "multipleOf": 0.25},
        "word": {"type": "string", "pattern": "^[a-zé]{3,20}$"},
        "counted": {"type": "string", "pattern": r"^(\S+ )*\S+$", "minLength": 3, "maxLength": 40},
        "again": {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "pattern": "^[a-zé]{3,20}$"}]},
    }
}


def test_copies_are_like_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first compilation lays out, the second keeps what it copies, the third finds it."""
    known: LeastRecentlyUsed[shared.Fragment] = LeastRecentlyUsed(1 << 20, lambda _: 1)
    monkeypatch.setattr(shared, "_known", known)
    monkeypatch.setattr(shared, "_met", LeastRecentlyUsed(100, lambda _: 1))
    artifacts, kept = [], []
    for _ in range(3):
        fsm = compile_grammar({"type": "json_schema", "schema": SCHEMA}, bytes_vocabulary())
        artifacts.append(fsm.to_bytes())
        kept.append(len(known))
    assert artifacts[0] == artifacts[1] == artifacts[2]
    assert kept[0] == 0 < kept[1] == kept[2]
