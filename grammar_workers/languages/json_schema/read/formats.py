"""Formats of strings (`STRING_FORMATS`): the values of the keyword `format` that Turnstile enforces, as patterns.

A pattern describes the whole string. Formats that no draft of JSON Schema defines belong here, too.

Sources: RFC 3339 (dates, times, durations), RFC 5321 and 6531 (email), RFC 1123 and 5890 (host names), RFC 2673 and
4291 (IP addresses), RFC 3986 and 3987 (URI, IRI), RFC 6570 (templates), RFC 4122 (UUID), RFC 6901 (JSON pointers),
ECMA-262 (regex). Some formats are not regular, or have several interpretations. Their patterns exclude some valid texts
(see `Format.narrower`), but never match an invalid text.
"""

from __future__ import annotations

from typing import NamedTuple

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP_YEAR = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME_DURATION = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DATE_DURATION = r"(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)"


def _label(edge: str, inner: str, most: int) -> str:
    """Return the pattern of a label of up to `most` characters, without hyphens at both the third and fourth position.

    Two such hyphens mark Punycode, which no regular language can check.

    Args:
        edge: Pattern of the first and the last character.
        inner: Pattern of the characters between.
        most: Largest number of characters.
    """
    third_and_fourth = rf"(?:{edge}{inner}|-{edge})"
    return rf"{edge}(?:{edge}|{inner}(?:-?{edge}|{edge}{{2}}|{third_and_fourth}{inner}{{0,{most - 5}}}{edge}))?"


_LABEL = _label("[A-Za-z0-9]", "[A-Za-z0-9-]", 63)
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
# Letters that IDNA 2008 allows anywhere, written from left to right, that compose with no other: of Latin, Greek,
# Cyrillic, Armenian, Devanagari, Thai, Georgian, Hiragana, Katakana, Han and Hangul.
_LETTERS = (
    r"\u00df-\u00f6\u00f8-\u00ff\u03ac-\u03ce\u0430-\u045f\u0561-\u0586\u0905-\u0939\u0e01-\u0e30\u10d0-\u10f0"
    r"\u3041-\u3094\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
# At most 14 characters, so that Punycode needs at most the 63 that a label may have.
_UNICODE_LABEL = _label(f"[a-z0-9{_LETTERS}]", f"[a-z0-9{_LETTERS}-]", 14)
_ANY_LABEL = rf"(?:{_LABEL}|{_UNICODE_LABEL})"
# Three labels always stay below the 253 characters of the whole.
_IDN_HOSTNAME = rf"(?:{_HOSTNAME}|{_ANY_LABEL}(?:[.\u3002\uff0e\uff61]{_ANY_LABEL}){{0,2}})"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_BEYOND_ASCII = "\\u0080-\\ud7ff\\ue000-\\uffff\U00010000-\U0010ffff"
_UNICODE_ATOM = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{_BEYOND_ASCII}-]+"
_UNICODE_QUOTED = rf'"(?:[ !#-\[\]-~{_BEYOND_ASCII}]|\\[ -~])*"'

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

# An IP address in place of a domain (RFC 5321).
_ADDRESS_LITERAL = rf"\[(?:{_IPV4}|IPv6:{_IPV6})\]"

_PERCENT = r"%[0-9A-Fa-f]{2}"
_UCS = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"


def _identifier(more: str) -> tuple[str, str]:
    """Return patterns of absolute and relative identifiers of RFC 3986; `more` has the characters of RFC 3987."""
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
# What RFC 6570 allows unescaped outside ASCII: `ucschar` and `iprivate` of RFC 3987, which have no noncharacters.
_PLANES = [*((plane << 16, (plane << 16) + 0xFFFD) for plane in (*range(1, 14), 15, 16)), (0xE1000, 0xEFFFD)]
_TEMPLATE_TEXT = rf"!#$&-;=?-\[\]_a-z~{_UCS}\ue000-\uf8ff" + "".join(f"{chr(a)}-{chr(b)}" for a, b in _PLANES)
_VARIABLE = rf"[A-Za-z0-9_](?:\.?(?:[A-Za-z0-9_]|{_PERCENT}))*(?::[1-9]\d{{0,2}}|\*)?"


_GROUPS = 3


def _regex() -> str:
    """Return a pattern of regular expressions that both ECMA-262 (with `u`) and Python accept, with nested groups."""
    hexadecimal = r"x[0-9A-Fa-f]{2}|u(?:[0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2})"
    escape = rf"\\(?:[dDsSwWnrtfv^$\\.*+?()\[\]{{}}|/]|{hexadecimal})"
    plain = rf" !\"#%&',/0-9:;<=>@A-Z_`a-z~{_BEYOND_ASCII}"
    ranges = "|".join(f"{first}-[{first}-{last}]" for first, last in ("09", "19", "AZ", "az"))
    character_class = rf"\[\^?(?:[{plain}$.*+?(){{}}|]|{escape}|\\-|{ranges})+-?\]"
    quantifier = r"(?:[*+?]|\{(?:\d{1,2},?|[01],[1-9]\d{0,2}|2,[2-9]|3,[3-9])\})\??"
    term = rf"(?:[{plain}.-]|{escape}|{character_class})(?:{quantifier})?|[|^$]|\\[bB]"
    pattern = flat = f"(?:{term})*"
    for _ in range(_GROUPS):
        pattern = rf"(?:{term}|\(\?[=!]{flat}\)|\((?:\?:)?{pattern}\)(?:{quantifier})?)*"
    return pattern


_PLAIN_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ANY = r"[\s\S]*"
_ANY_DATE = rf"\d{{4}}-(?:{_MONTH_DAY}|02-29)"
_ANY_TIME = _TIME.replace(r"[0-5]\d(?:\.", r"(?:[0-5]\d|60)(?:\.")
_FUTURE_ADDRESS = r"[!-~]*\[[Vv][!-~]*"


class Format(NamedTuple):
    """Definition of one format of strings, by regular expressions that match the whole string.

    Attributes:
        since: Number of the first draft that defines the format, as in `keywords.DRAFTS`. 4 if no draft defines it: the
            format then has the same meaning in all drafts.
        pattern: Pattern of the texts that may be generated.
        wider: If `pattern` excludes some texts of the format, a pattern that matches at least all texts of the format;
            otherwise None. It is used if a schema requires texts that are *not* of the format.
        narrower: Description of the texts of the format that `pattern` excludes, for the documentation; "" for none.
        longest: Largest number of characters; None for no limit.
        until_6: Pattern in drafts 4 and 6, if the format has another meaning there; otherwise None.
    """

    since: int
    pattern: str
    wider: str | None = None
    narrower: str = ""
    longest: int | None = None
    until_6: str | None = None


STRING_FORMATS = {
    "date": Format(7, _DATE, wider=_ANY_DATE, narrower="years before 0001"),
    "time": Format(7, _TIME, wider=_ANY_TIME, narrower="leap seconds"),
    "date-time": Format(4, rf"{_DATE}[Tt]{_TIME}", wider=rf"{_ANY_DATE}[Tt]{_ANY_TIME}"),
    "duration": Format(2019, rf"P(?:\d+W|{_DATE_DURATION}(?:{_TIME_DURATION})?|{_TIME_DURATION})"),
    "email": Format(
        4, rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOSTNAME}|{_ADDRESS_LITERAL})", wider=rf"{_ANY}@{_ANY}"
    ),
    "idn-email": Format(
        7,
        rf"(?:{_UNICODE_ATOM}(?:\.{_UNICODE_ATOM})*|{_UNICODE_QUOTED})@(?:{_IDN_HOSTNAME}|{_ADDRESS_LITERAL})",
        wider=rf"{_ANY}@{_ANY}",
    ),
    "hostname": Format(
        4,
        _HOSTNAME,
        wider=r"[A-Za-z0-9.-]*",
        narrower="labels with hyphens at the third and fourth position (Punycode)",
        longest=253,
        # Older drafts do not exclude labels with the hyphens of Punycode.
        until_6=rf"{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL})*",
    ),
    "idn-hostname": Format(
        7,
        _IDN_HOSTNAME,
        wider=rf"[A-Za-z0-9.{_BEYOND_ASCII}-]*",
        narrower="as `hostname`; non-ASCII labels with more than 14 letters, rare scripts or more than two dots",
        longest=253,
    ),
    "ipv4": Format(4, _IPV4),
    "ipv6": Format(4, _IPV6),
    "uri": Format(
        4,
        _URI,
        wider=rf"{_URI}|[A-Za-z][A-Za-z0-9+.-]*:{_FUTURE_ADDRESS}",
        narrower="IP addresses of future versions",
    ),
    "uri-reference": Format(6, _URI_REFERENCE, wider=rf"{_URI_REFERENCE}|{_FUTURE_ADDRESS}"),
    "iri": Format(
        7,
        _IRI,
        wider=rf"[A-Za-z][A-Za-z0-9+.-]*:[!-~{_BEYOND_ASCII}]*",
        narrower="characters outside of the basic multilingual plane",
    ),
    "iri-reference": Format(7, _IRI_REFERENCE, wider=rf"[!-~{_BEYOND_ASCII}]*"),
    "uri-template": Format(
        6,
        rf"(?:[{_TEMPLATE_TEXT}]|{_PERCENT}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",
        wider=rf"(?:[{_TEMPLATE_TEXT}]|{_PERCENT}|\{{[^{{}}]*\}})*",
        narrower="prefixes above 999, and variables that begin with a percent-encoded character",
    ),
    "uuid": Format(2019, r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
    "json-pointer": Format(6, _POINTER),
    "regex": Format(
        7,
        _regex(),
        wider=_ANY,
        narrower="expressions outside of the common subset of ECMA-262 and Python, named groups, look-behind, and "
        f"groups that are nested more than {_GROUPS} deep",
    ),
    "relative-json-pointer": Format(7, rf"(?:0|[1-9]\d*)(?:#|{_POINTER})"),
}


def source_of(name: str, draft: int) -> str:
    """Return the anchored regular expression of a format in a draft of JSON Schema.

    The expression may exclude some texts of the format. In this case, `WIDER_SOURCES` maps it to an expression that
    matches all texts of the format. If the draft does not define the format, the expression is that of later drafts,
    and `WIDER_SOURCES` maps it to an expression that matches every text.

    Args:
        name: Name of a format, a key of `STRING_FORMATS`.
        draft: Number of the draft, as in `keywords.DRAFTS`.
    """
    found = STRING_FORMATS[name]
    if draft < found.since:
        return _undefined(found)
    return f"^(?:{found.until_6 if draft <= 6 and found.until_6 else found.pattern})$"


def _undefined(found: Format) -> str:
    """Return an equivalent pattern with other source text, for drafts that do not define the format."""
    return f"^(?:(?:{found.pattern}))$"


# Pattern of a format -> pattern of all texts that may have the format.
#
# For a draft that does not define the format, this is every text.
WIDER_SOURCES = {
    f"^(?:{pattern})$": f"^(?:{found.wider})$"
    for found in STRING_FORMATS.values()
    for pattern in (found.pattern, found.until_6)
    if found.wider is not None and pattern is not None
} | {_undefined(found): _ANY for found in STRING_FORMATS.values()}
