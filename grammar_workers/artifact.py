"""The envelope around a compiled automaton: what lies in files and Redis, and what travels between the tiers.

    magic | version | key | fingerprint | payload length | notes length | digest | notes | zstd frame
    4s      u16       32s   32s           u64              u32            32s      JSON    bytes

All integers little-endian. `key` is the grammar key, `fingerprint` the SHA-256 of the vocabulary's fingerprint,
`digest` covers everything else. It is SHA-256, against accidents; where the environment variable
TURNSTILE_STORE_HMAC_KEY is set it is HMAC-SHA256 with that secret, against a store that others can write to. Nothing is
decompressed before the digest holds, nothing is ever unpickled, and every malformed input raises `ArtifactError`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import os
import struct
from collections.abc import Sequence

import zstandard

HMAC_KEY_VARIABLE = "TURNSTILE_STORE_HMAC_KEY"
FORMAT_VERSION = 1
MAX_NOTES_BYTES = 1 << 20

_MAGIC = b"TFSM"
_HEADER = struct.Struct("<4sH32s32sQI")
_DIGEST_SIZE = hashlib.sha256().digest_size
_PREFIX_SIZE = _HEADER.size + _DIGEST_SIZE
_ZSTD_LEVEL = 3


class ArtifactError(ValueError):
    """Bytes that are not a valid artifact for this key and vocabulary; `reason` is one short word or phrase."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"invalid grammar artifact: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[ArtifactError], tuple[str]]:
        return ArtifactError, (self.reason,)


@dataclasses.dataclass(frozen=True, slots=True)
class _Envelope:
    """A verified envelope, not decompressed yet."""

    payload_length: int
    notes: memoryview
    frame: memoryview


def pack(payload: bytes, *, key: str, fingerprint: str, notes: Sequence[str] = ()) -> bytes:
    """Wrap `payload`. `notes` (`TokenFSM.notes`) stay readable without unpacking it."""
    encoded_notes = json.dumps(list(notes), ensure_ascii=False, separators=(",", ":")).encode()
    if len(encoded_notes) > MAX_NOTES_BYTES:
        raise ArtifactError("notes too large")
    header = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, _key_bytes(key), _fingerprint_bytes(fingerprint), len(payload), len(encoded_notes)
    )
    body = encoded_notes + zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(payload)
    return header + _digest(header, body) + body


def unpack(data: bytes | memoryview, *, key: str | None, fingerprint: str, max_payload_bytes: int) -> bytes:
    """The payload that `pack` wrapped, at most `max_payload_bytes` of it; `key=None` accepts any key."""
    envelope = _open(data, key, fingerprint)
    length = envelope.payload_length
    if length > max_payload_bytes:
        raise ArtifactError("payload too large")
    try:
        # The size inside the frame decides what the decompressor allocates, so it is compared first.
        if zstandard.get_frame_parameters(envelope.frame).content_size != length:
            raise ArtifactError("payload length")
        payload = zstandard.ZstdDecompressor().decompress(
            envelope.frame, max_output_size=length, allow_extra_data=False
        )
    except zstandard.ZstdError:
        raise ArtifactError("compressed payload") from None
    if len(payload) != length:
        raise ArtifactError("payload length")
    return payload


def verify(data: bytes | memoryview, *, key: str, fingerprint: str | None = None) -> None:
    """Everything `unpack` checks except the compressed payload itself, at the price of one digest."""
    _open(data, key, fingerprint)


def read_key(data: bytes | memoryview) -> str:
    """The grammar key in the header (unverified: `unpack` checks the digest that covers it)."""
    if len(data) < _PREFIX_SIZE:
        raise ArtifactError("truncated")
    key: bytes = _HEADER.unpack(memoryview(data)[: _HEADER.size])[2]
    return key.hex()


def read_notes(data: bytes | memoryview, *, key: str) -> list[str]:
    """The notes that `pack` was given."""
    try:
        notes = json.loads(bytes(_open(data, key, None).notes))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError("notes") from None
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise ArtifactError("notes")
    return notes


def _open(data: bytes | memoryview, key: str | None, fingerprint: str | None) -> _Envelope:
    view = memoryview(data)
    if len(view) < _PREFIX_SIZE:
        raise ArtifactError("truncated")
    header, body = view[: _HEADER.size], view[_PREFIX_SIZE:]
    magic, version, key_bytes, fingerprint_bytes, payload_length, notes_length = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise ArtifactError("magic")
    if version != FORMAT_VERSION:
        raise ArtifactError("format version")
    if key is not None and not hmac.compare_digest(key_bytes, _key_bytes(key)):
        raise ArtifactError("key")
    if fingerprint is not None and not hmac.compare_digest(fingerprint_bytes, _fingerprint_bytes(fingerprint)):
        raise ArtifactError("vocabulary fingerprint")
    if not hmac.compare_digest(view[_HEADER.size : _PREFIX_SIZE], _digest(header, body)):
        raise ArtifactError("digest")
    if notes_length > min(MAX_NOTES_BYTES, len(body)):
        raise ArtifactError("notes")
    return _Envelope(payload_length, body[:notes_length], body[notes_length:])


def _digest(header: bytes | memoryview, body: bytes | memoryview) -> bytes:
    secret = os.environ.get(HMAC_KEY_VARIABLE)
    digest = hmac.new(secret.encode(), digestmod=hashlib.sha256) if secret else hashlib.sha256()
    digest.update(header)
    digest.update(body)
    return digest.digest()


def _key_bytes(key: str) -> bytes:
    try:
        key_bytes = bytes.fromhex(key)
    except ValueError:
        raise ArtifactError("key") from None
    if len(key_bytes) != 32 or key_bytes.hex() != key:
        raise ArtifactError("key")
    return key_bytes


def _fingerprint_bytes(fingerprint: str) -> bytes:
    return hashlib.sha256(fingerprint.encode()).digest()
