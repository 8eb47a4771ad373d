"""The envelope around a compiled automaton: what lies in files and Redis, and what travels between the tiers.

    magic | version | key | fingerprint | payload length | details length | digest | details | zstd frame
    4s      u16       32s   32s           u64              u32              32s      JSON      bytes

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
import re
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import zstandard

from grammar_workers.errors import ArtifactError
from grammar_workers.types import UnenforcedKeyword

HMAC_KEY_VARIABLE = "TURNSTILE_STORE_HMAC_KEY"
FORMAT_VERSION = 5
WRONG_DIGEST = "digest"
"""Reason of an `ArtifactError`: the bytes are damaged, or signed with another key."""
MAX_DETAILS_BYTES = 1 << 20

_MAGIC = b"TFSM"
_HEADER = struct.Struct("<4sH32s32sQI")
_DIGEST_SIZE = hashlib.sha256().digest_size
_PREFIX_SIZE = _HEADER.size + _DIGEST_SIZE
_ZSTD_LEVEL = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """A verified envelope, not decompressed yet."""

    key: str
    _payload_length: int
    _details: memoryview
    _frame: memoryview

    def payload(self, most: int) -> bytes:
        """The payload that `pack` wrapped, of at most `most` bytes."""
        length = self._payload_length
        if length > most:
            raise ArtifactError("payload too large")
        try:
            # The size inside the frame decides what the decompressor allocates, so it is compared first.
            if zstandard.get_frame_parameters(self._frame).content_size != length:
                raise ArtifactError("payload length")
            payload = zstandard.ZstdDecompressor().decompress(
                self._frame, max_output_size=length, allow_extra_data=False
            )
        except zstandard.ZstdError:
            raise ArtifactError("compressed payload") from None
        if len(payload) != length:
            raise ArtifactError("payload length")
        return payload

    def details(self) -> dict[str, Any]:
        """The details that `pack` was given, "notes", and "unenforced" (`TokenFSM.unenforced`)."""
        try:
            details = json.loads(bytes(self._details))
        except (ValueError, RecursionError):
            raise ArtifactError("details") from None
        notes = details.get("notes") if isinstance(details, dict) else None
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise ArtifactError("details")
        # Artifacts that are older than the option have none.
        unenforced = details.setdefault("unenforced", [])
        if not isinstance(unenforced, list) or not all(map(_is_unenforced_keyword, unenforced)):
            raise ArtifactError("details")
        return details


def is_key(text: str) -> bool:
    """Whether it is the hexadecimal SHA-256 that a grammar key is."""
    return re.fullmatch("[0-9a-f]{64}", text) is not None


def pack(
    payload: bytes,
    *,
    key: str,
    fingerprint: str,
    notes: Sequence[str] = (),
    details: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Wrap `payload`. `notes` (`TokenFSM.notes`) and `details` (plain data) stay readable without unpacking it."""
    contents = {**details, "notes": list(notes)}
    encoded = json.dumps(contents, ensure_ascii=False, separators=(",", ":")).encode()
    if len(encoded) > MAX_DETAILS_BYTES:
        raise ArtifactError("details too large")
    header = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, _key_bytes(key), _fingerprint_bytes(fingerprint), len(payload), len(encoded)
    )
    body = encoded + zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(payload)
    return header + _digest(header, body) + body


def verify(data: bytes | memoryview, *, key: str | None, fingerprint: str | None = None) -> Envelope:
    """Check everything but the compressed payload, at the price of one digest; None accepts any key or vocabulary."""
    view = memoryview(data)
    if len(view) < _PREFIX_SIZE:
        raise ArtifactError("truncated")
    header, body = view[: _HEADER.size], view[_PREFIX_SIZE:]
    magic, version, key_bytes, fingerprint_bytes, payload_length, details_length = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise ArtifactError("magic")
    if version != FORMAT_VERSION:
        raise ArtifactError("format version")
    if key is not None and not hmac.compare_digest(key_bytes, _key_bytes(key)):
        raise ArtifactError("key")
    if fingerprint is not None and not hmac.compare_digest(fingerprint_bytes, _fingerprint_bytes(fingerprint)):
        raise ArtifactError("vocabulary fingerprint")
    if not hmac.compare_digest(view[_HEADER.size : _PREFIX_SIZE], _digest(header, body)):
        raise ArtifactError(WRONG_DIGEST)
    if details_length > min(MAX_DETAILS_BYTES, len(body)):
        raise ArtifactError("details")
    return Envelope(key_bytes.hex(), payload_length, body[:details_length], body[details_length:])


def _is_unenforced_keyword(found: Any) -> bool:
    names = UnenforcedKeyword.__required_keys__
    return isinstance(found, dict) and found.keys() == names and all(isinstance(text, str) for text in found.values())


def _digest(header: bytes | memoryview, body: bytes | memoryview) -> bytes:
    secret = os.environ.get(HMAC_KEY_VARIABLE)
    digest = hmac.new(secret.encode(), digestmod=hashlib.sha256) if secret else hashlib.sha256()
    digest.update(header)
    digest.update(body)
    return digest.digest()


def _key_bytes(key: str) -> bytes:
    if not is_key(key):
        raise ArtifactError("key")
    return bytes.fromhex(key)


def _fingerprint_bytes(fingerprint: str) -> bytes:
    return hashlib.sha256(fingerprint.encode()).digest()
