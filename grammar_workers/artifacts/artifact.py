"""Envelope of a compiled automaton: the bytes that are stored in files and Redis and sent between deployments.

    magic | version | key | fingerprint | payload length | details length | digest | details | zstd frame
    4s      u16       32s   32s           u64              u32              32s      JSON      bytes

All integers are little-endian. The zstd frame is the compressed payload (tables of the automaton). `key` is the grammar
key, `fingerprint` is the SHA-256 of the vocabulary's fingerprint, and `digest` covers everything else.

The digest is SHA-256, which detects accidental damage. If the environment variable TURNSTILE_STORE_HMAC_KEY is set, the
digest is HMAC-SHA256 with that secret. It then also detects changes by others who can write to the store. Nothing is
decompressed before the digest has been verified, nothing is ever unpickled, and every malformed input raises
`ArtifactError`.
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
# Version of the envelope. Artifacts of another version are rejected.
FORMAT_VERSION = 5
# Reason of an `ArtifactError`: the bytes are damaged, or the digest has another secret.
WRONG_DIGEST = "digest"
MAX_DETAILS_BYTES = 1 << 20

_MAGIC = b"TFSM"
_HEADER = struct.Struct("<4sH32s32sQI")
_DIGEST_SIZE = hashlib.sha256().digest_size
_PREFIX_SIZE = _HEADER.size + _DIGEST_SIZE
_ZSTD_LEVEL = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """Parsed artifact (compiled grammar as bytes) whose digest was correct. The payload is still compressed.

    Attributes:
        key: Grammar key, 64 hexadecimal digits.
    """

    key: str
    _payload_length: int
    _details: memoryview
    _frame: memoryview

    def payload(self, most: int) -> bytes:
        """Return the payload (serialized automaton) that was passed to `pack`. This call decompresses it.

        Args:
            most: Maximum size of the payload, in bytes.

        Raises:
            ArtifactError: The payload is larger than `most`, or malformed.
        """
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
        """Return the details and the warnings that were passed to `pack`.

        Returns:
            The details, parsed from JSON. `notes` is the list of warnings. `unenforced` is the list of keywords that
            are not enforced (`UnenforcedKeyword`). It is empty if the artifact has no such entry.

        Raises:
            ArtifactError: The details are malformed.
        """
        try:
            details = json.loads(bytes(self._details))
        except (ValueError, RecursionError):
            raise ArtifactError("details") from None
        notes = details.get("notes") if isinstance(details, dict) else None
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise ArtifactError("details")
        # Artifacts that are older than the option do not have this field.
        unenforced = details.setdefault("unenforced", [])
        if not isinstance(unenforced, list) or not all(map(_is_unenforced_keyword, unenforced)):
            raise ArtifactError("details")
        return details


def is_key(text: str) -> bool:
    """Return whether the text has the form of a grammar key: 64 hexadecimal digits in lower case."""
    return re.fullmatch("[0-9a-f]{64}", text) is not None


def pack(
    payload: bytes,
    *,
    key: str,
    fingerprint: str,
    notes: Sequence[str] = (),
    details: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Return the bytes of an artifact: the envelope (header, digest, details) with the compressed payload.

    If TURNSTILE_STORE_HMAC_KEY is set, the digest is an HMAC with that secret.

    Args:
        payload: Tables of the automaton.
        key: Grammar key, 64 hexadecimal digits in lower case.
        fingerprint: Fingerprint of the vocabulary (`Vocabulary.fingerprint`).
        notes: Warnings about the grammar (`TokenFSM.notes`).
        details: JSON values by name, which can be read without decompression of the payload.

    Raises:
        ArtifactError: The key is malformed, or the details have more than `MAX_DETAILS_BYTES` bytes.
    """
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
    """Return the parts of an artifact (compiled grammar as bytes) after verification.

    The payload is not decompressed. The cost is that of one digest (SHA-256 or HMAC) of the data.

    Args:
        data: Bytes of the artifact. The returned object refers to these bytes and copies nothing.
        key: Grammar key that the artifact must have. None: any key.
        fingerprint: Fingerprint of the vocabulary that the artifact must have. None: any vocabulary.

    Raises:
        ArtifactError: The data are malformed, damaged, or of another key or vocabulary. The error names the field.
    """
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
