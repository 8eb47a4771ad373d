"""The formats that JSON Schema defines, as patterns over the whole string.

Sources: RFC 3339 (dates, times, durations), RFC 5321 and 6531 (email), RFC 1123 (host names), RFC 2673 and 4291 (IP
addresses), RFC 3986 and 3987 (URI, IRI), RFC 6570 (templates), RFC 4122 (UUID), RFC 6901 (JSON pointers). Where a
format is not quite regular the pattern is a little narrower, never wider: no leap seconds, no years before 0001, no
quoted local parts, international host names only as ASCII.
"""

from __future__ import annotations

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP_YEAR = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME_DURATION = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DATE_DURATION = r"(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)"

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_UNICODE_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u00a1-\ud7ff\uf900-\ufffd-]+"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d{2}|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    rf"(?:(?:{_H16}:){{6}}{_LS32}|::(?:{_H16}:){{5}}{_LS32}|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    rf"|(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}|(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}"
    rf"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    rf"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)

_PERCENT = r"%[0-9A-Fa-f]{2}"
_UCS = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"


def _identifier(more: str) -> tuple[str, str]:
    """(absolute, relative) identifiers of RFC 3986; `more` are the characters that RFC 3987 adds."""
    unreserved = rf"A-Za-z0-9._~!$&'()*+,;={more}"
    character = rf"(?:[{unreserved}:@-]|{_PERCENT})"
    path = rf"(?:/{character}*)*"
    host = rf"(?:\[{_IPV6}\]|(?:[{unreserved}-]|{_PERCENT})*)"
    authority = rf"(?:(?:[{unreserved}:-]|{_PERCENT})*@)?{host}(?::\d*)?"
    rooted = rf"(?://{authority}{path}|/(?:{character}+{path})?)"
    rest = rf"(?:\?(?:{character}|[/?])*)?(?:#(?:{character}|[/?])*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|{character}+{path}|){rest}"
    first = rf"(?:[{unreserved}@-]|{_PERCENT})+"
    return absolute, rf"(?:{absolute}|(?:{rooted}|{first}{path}|){rest})"


_URI, _URI_REFERENCE = _identifier("")
_IRI, _IRI_REFERENCE = _identifier(_UCS)
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_VARIABLE = rf"(?:[A-Za-z0-9_]|{_PERCENT})(?:\.?(?:[A-Za-z0-9_]|{_PERCENT}))*(?::[1-9]\d{{0,3}}|\*)?"

PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": rf"P(?:\d+W|{_DATE_DURATION}(?:{_TIME_DURATION})?|{_TIME_DURATION})",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOSTNAME}",
    "idn-email": rf"{_UNICODE_ATOM}(?:\.{_UNICODE_ATOM})*@{_HOSTNAME}",
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": rf"(?:[^\x01-\x20\"'%<>\\^`{{|}}\x7f]|{_PERCENT}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}
"""Format name -> pattern of the whole string."""

MAXIMUM_LENGTHS = {"hostname": 253, "idn-hostname": 253}
NOT_REGULAR = frozenset(["regex"])
"""Defined by the specification, but no regular language; refused when formats are asserted."""
