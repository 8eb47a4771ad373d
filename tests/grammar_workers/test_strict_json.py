"""JSON from outside: what is refused, and the place of a key that stands twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar_workers.strict_json import JsonTextError, parse_json


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1,]", '{"a":1,}', "NaN", "Infinity", "01", "'a'", '"\\ud800"', "\ud800", '"\n"', "1 2", "\ufeff{}"]
    + ["[" * 300 + "]" * 300, "9" * 5000, b"\xff", b'"\xed\xa0\x80"'],
)
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(JsonTextError) as caught:
        parse_json(text)
    assert caught.value.place == () and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a":1,"a":2}', ("a",)),
        ('{"a":{"a":1},"a":2}', ("a",)),
        ('{"a"  :1,\n\n "\\u0061"\n:\n2}', ("a",)),
        ('[{"a":{"b":1}},{"b":[],"b" : {}}]', (1, "b")),
        ('{"x":[0,{"a":[1,{"a":{}}],"b":[{"b":1,\r\n"b":2}]}]}', ("x", 1, "b", 0, "b")),
        ('{"é":{"é":[]},\n"é":"é"}', ("é",)),
        ('{"":[],"":1}', ("",)),
        ('{"\\"":1,"\\"":2}', ('"',)),
        ('{"a\\n":1,"b":{"c":"a","c":', ("b", "c")),
        ('{"a":1,"a":', ("a",)),
    ],
)
def test_a_key_that_stands_twice_has_a_place(text: str, place: tuple[str | int, ...]) -> None:
    with pytest.raises(JsonTextError, match="stands twice") as caught:
        parse_json(text)
    assert caught.value.place == place


KEY = '"' + "k" * 100_000 + '"'


def test_a_long_key_is_not_repeated() -> None:
    with pytest.raises(JsonTextError) as caught:
        parse_json(f"[{{{KEY}:1,{KEY}:2}}]")
    assert len(str(caught.value)) < 200


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_json_is_read_as_python_reads_it(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert repr(parse_json(text)) == repr(parse_json(text.encode())) == repr(json.loads(text))


@given(VALUES, st.data(), st.sampled_from([None, 1]))
def test_wherever_a_key_is_doubled_it_is_found(value: Any, data: st.DataObject, indent: int | None) -> None:
    """The key comes again as the last of its object, which is the first place where anything is wrong."""
    objects = list(_objects(value, ()))
    if not objects:
        return
    place, chosen = data.draw(st.sampled_from(objects))
    key = data.draw(st.sampled_from(list(chosen)))
    chosen["\ue000"] = 0
    text = json.dumps(value, ensure_ascii=False, indent=indent).replace(
        '"\ue000": 0', f"{json.dumps(key, ensure_ascii=False)}: 0"
    )
    with pytest.raises(JsonTextError) as caught:
        parse_json(text)
    assert caught.value.place == (*place, key)


def _objects(value: Any, place: tuple[str | int, ...]) -> Any:
    if isinstance(value, dict) and value and "\ue000" not in value:
        yield place, value
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield from _objects(inner, (*place, key))
