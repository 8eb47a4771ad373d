"""The artifact envelope: what went in comes out, and nothing else ever does."""

from __future__ import annotations

import hashlib
import pickle
import struct
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from grammar_workers.artifacts import artifact
from grammar_workers.errors import ArtifactError

KEY = "0123456789abcdef" * 4
OTHER_KEY = "f" * 64
FINGERPRINT = "a1b2"
LIMIT = 1 << 20


def unpack(
    data: bytes | memoryview, *, key: str | None = KEY, fingerprint: str = FINGERPRINT, most: int = LIMIT
) -> bytes:
    return artifact.verify(data, key=key, fingerprint=fingerprint).payload(most)


def reason(data: bytes, **changes: Any) -> str:
    with pytest.raises(ArtifactError) as caught:
        unpack(data, **changes)
    return caught.value.reason


def sealed(
    frame: bytes, payload_length: int, details: bytes = b'{"notes":[]}', version: int = artifact.FORMAT_VERSION
) -> bytes:
    """An envelope with a right digest around whatever a hostile writer likes."""
    vocabulary = hashlib.sha256(FINGERPRINT.encode()).digest()
    header = struct.pack("<4sH32s32sQI", b"TFSM", version, bytes.fromhex(KEY), vocabulary, payload_length, len(details))
    return header + hashlib.sha256(header + details + frame).digest() + details + frame


@given(payload=st.binary(max_size=4096), notes=st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=4))
def test_round_trip(payload: bytes, notes: list[str]) -> None:
    data = artifact.pack(payload, key=KEY, fingerprint=FINGERPRINT, notes=notes, details={"owner": "a"})
    assert unpack(data) == payload
    assert unpack(data, key=None) == payload
    assert unpack(memoryview(data)) == payload
    envelope = artifact.verify(data, key=None)
    assert envelope.details() == {"owner": "a", "notes": notes, "unenforced": []}
    assert envelope.key == KEY


@given(payload=st.binary(max_size=300), position=st.integers(min_value=0), change=st.integers(1, 255))
def test_any_changed_byte_is_refused(payload: bytes, position: int, change: int) -> None:
    data = bytearray(artifact.pack(payload, key=KEY, fingerprint=FINGERPRINT, notes=["a note"]))
    data[position % len(data)] ^= change
    reason(bytes(data))
    reason(bytes(data), key=None)
    with pytest.raises(ArtifactError):
        artifact.verify(bytes(data), key=KEY)


@given(payload=st.binary(max_size=300), length=st.integers(min_value=0), tail=st.binary(min_size=1, max_size=20))
def test_any_truncation_or_extension_is_refused(payload: bytes, length: int, tail: bytes) -> None:
    data = artifact.pack(payload, key=KEY, fingerprint=FINGERPRINT)
    reason(data[: length % len(data)])
    reason(data + tail)


@given(data=st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    reason(data)
    reason(b"TFSM\x02\x00" + data)


def test_reasons() -> None:
    data = artifact.pack(b"payload", key=KEY, fingerprint=FINGERPRINT)
    assert reason(b"") == "truncated"
    assert reason(pickle.dumps([1] * 100)) == "magic"
    assert reason(data, key=OTHER_KEY) == "key"
    assert reason(data, fingerprint="other") == "vocabulary fingerprint"
    assert reason(data, most=6) == "payload too large"
    assert reason(data[:-1]) == "digest"
    assert reason(sealed(zstandard.compress(b"x"), 1, version=1)) == "format version"


def test_a_right_digest_does_not_make_the_frame_trusted() -> None:
    bomb = zstandard.compress(bytes(64 << 20))
    assert unpack(sealed(zstandard.compress(b"abc"), 3)) == b"abc"
    assert reason(sealed(bomb, 10)) == "payload length"
    assert reason(sealed(bomb, 64 << 20)) == "payload too large"
    assert reason(sealed(b"not zstd", 3)) == "compressed payload"
    assert reason(sealed(zstandard.compress(b"abc") + b"tail", 3)) == "compressed payload"
    assert reason(sealed(zstandard.compress(b"abc")[:-2], 3)) == "compressed payload"
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc")
    assert reason(sealed(streamed, 3)) == "payload length"


@pytest.mark.parametrize(
    "details",
    [
        b"{",
        b'{"a":1}',
        b'{"notes":[1]}',
        b'{"notes":[],"unenforced":[{"pointer":"/a"}]}',
        b"[1]",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_hostile_details_are_refused(details: bytes) -> None:
    data = sealed(zstandard.compress(b"abc"), 3, details=details)
    with pytest.raises(ArtifactError, match="details"):
        artifact.verify(data, key=KEY).details()


@pytest.mark.parametrize("key", ["", "ab", "../" * 20, "G" * 64, "AB" * 32, "a " * 32])
def test_keys_that_are_not_hashes_are_refused(key: str) -> None:
    with pytest.raises(ArtifactError, match="key"):
        artifact.pack(b"", key=key, fingerprint=FINGERPRINT)
    assert reason(artifact.pack(b"", key=KEY, fingerprint=FINGERPRINT), key=key) == "key"


def test_hmac_key_authenticates(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = artifact.pack(b"payload", key=KEY, fingerprint=FINGERPRINT)
    monkeypatch.setenv(artifact.HMAC_KEY_VARIABLE, "secret")
    assert reason(plain) == "digest"
    signed = artifact.pack(b"payload", key=KEY, fingerprint=FINGERPRINT)
    assert unpack(signed) == b"payload"
    monkeypatch.setenv(artifact.HMAC_KEY_VARIABLE, "other secret")
    assert reason(signed) == "digest"
    monkeypatch.delenv(artifact.HMAC_KEY_VARIABLE)
    assert reason(signed) == "digest"


def test_error_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(ArtifactError("digest"))).reason == "digest"
