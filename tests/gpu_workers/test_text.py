"""Incremental text: always the whole bytes' text, released early but never too early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_workers.model.text import TextStream

PIECES = st.lists(st.text(alphabet="ab\n€𝄞é", max_size=4).map(str.encode) | st.binary(max_size=3), max_size=12)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The bytes in pieces of these sizes, the rest last."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.text(), st.lists(st.integers(0, 3), max_size=40))
def test_text_is_the_concatenation_of_token_bytes(text: str, sizes: list[int]) -> None:
    stream = TextStream()
    seen = "".join(stream.append(piece) for piece in cut(text.encode(), sizes))
    assert seen + stream.finish() == text
    assert "\ufffd" not in seen or "\ufffd" in text


@given(PIECES)
def test_released_text_is_a_prefix_of_the_whole(pieces: list[bytes]) -> None:
    """Whatever the bytes, nothing released is taken back; only an unfinished character is missing at the end."""
    stream = TextStream()
    whole = b"".join(pieces).decode(errors="replace")
    seen = "".join(stream.append(piece) for piece in pieces) + stream.finish()
    assert whole.startswith(seen)
    assert whole[len(seen) :] in ("", "\ufffd")


def test_a_split_character_is_held_back_until_whole() -> None:
    stream = TextStream()
    assert [stream.append(bytes([byte])) for byte in "€!".encode()] == ["", "", "€", "!"]


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(0, 3), max_size=20),
)
def test_stop_strings_cut_where_they_first_begin(text: str, stop: list[str], sizes: list[int]) -> None:
    """Whatever the pieces: text up to the first stop string that is complete, and nothing of it before."""
    stream = TextStream(stop)
    seen, end = "", len(text)
    for piece in cut(text.encode(), sizes):
        seen += stream.append(piece)
        end = len(piece)
        if stream.stopped:
            break
    if stream.stopped:
        assert any(text[len(seen) :].startswith(one) for one in stop)
        assert stream.finish() == ""
        assert end
    else:
        assert not any(one in text for one in stop)
        assert seen + stream.finish() == text
    assert not any(one in seen for one in stop)


def test_a_possible_stop_string_is_held_back() -> None:
    stream = TextStream(["END"])
    assert [stream.append(piece) for piece in (b"xE", b"N", b"x", b"EN", b"D")] == ["x", "", "ENx", "", ""]
    assert stream.stopped


def test_under_a_grammar_a_stop_string_counts_only_where_the_output_was_complete() -> None:
    stream = TextStream(["\n"], constrained=True)
    assert stream.append(b"{", complete_before=False) == "{"
    assert stream.append(b"\n", complete_before=False) == "\n"
    assert stream.append(b"}", complete_before=False) == "}"
    assert not stream.stopped
    assert stream.append(b"\n", complete_before=True) == ""
    assert stream.stopped


def test_under_a_grammar_a_stop_string_inside_a_token_does_not_count() -> None:
    """Whether the text before it would match is unknown there."""
    stream = TextStream(["b"], constrained=True)
    assert stream.append(b"abc", complete_before=True) == "abc"
    assert not stream.stopped
