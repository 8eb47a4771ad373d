"""Comparison of JSON numbers by value: 1, 1.0 and 10e-1 are equal, and 0, -0 and 0e7 are equal."""

from __future__ import annotations

import re
from typing import TypeAlias

# (whether the number is negative, its digits without leading and trailing zeros, the power of ten after the
# digits). Zero has no digits.
NumberMeaning: TypeAlias = tuple[bool, bytes, int]
ZERO: NumberMeaning = (False, b"", 0)
_NUMBER = re.compile(rb"(-?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]*))?")
# Maximum number of digits of an exponent. Compiled automata allow three.
_MOST_DIGITS = 4000


def meaning_of(text: bytes) -> NumberMeaning | None:
    """Return the value of a JSON number.

    Args:
        text: Text of the number, such as b"-1.50e2".

    Returns:
        The normalized value: (negative, digits, exponent). The absolute value is the integer `digits` times 10 **
        exponent. The digits have no leading or trailing zeros; zero has no digits. Equal numbers have equal tuples.
        None if the text is not a number, or its exponent has more than 4,000 digits.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, exponent_sign, exponent = (part or b"" for part in found.groups())
    digits = (whole + fraction).lstrip(b"0")
    if not digits.strip(b"0"):
        return ZERO
    if len(exponent) > _MOST_DIGITS:
        return None
    kept = digits.rstrip(b"0")
    power = int(exponent or b"0") * (-1 if exponent_sign == b"-" else 1)
    return bool(sign), kept, power - len(fraction) + len(digits) - len(kept)


def may_become(text: bytes, number: NumberMeaning) -> bool:
    """Return whether a number that begins with `text` may equal `number`.

    If `text` has no exponent, only the digits are compared, because an exponent can still move the decimal point.

    Args:
        text: Part of a number that has been read.
        number: Normalized value, from `meaning_of`.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return False
    sign, whole, fraction, exponent_sign, exponent = found.groups()
    negative, wanted, power = number
    digits = (whole + (fraction or b"")).lstrip(b"0")
    if not wanted:
        return not digits
    if bool(sign) != negative:
        return False
    if exponent is None:
        return wanted.startswith(digits) or (not digits.removeprefix(wanted).strip(b"0") and digits.startswith(wanted))
    if not digits.startswith(wanted) or digits[len(wanted) :].strip(b"0"):
        return False
    # The exponent with which the digits equal the number.
    needed = power + len(fraction or b"") - (len(digits) - len(wanted))
    if needed == 0:
        return not exponent.strip(b"0")
    if needed < 0 and exponent_sign != b"-" and (exponent or exponent_sign):
        return False
    if needed > 0 and exponent_sign == b"-":
        return False
    return str(abs(needed)).encode().startswith(exponent.lstrip(b"0"))


def sign_and_digits(text: bytes) -> tuple[bool, bytes]:
    """Return the sign and the digits of a number that begins with `text`.

    Args:
        text: Part of a number that has been read, possibly empty.

    Returns:
        The pair (negative, digits). The digits are those before the exponent, without leading zeros and decimal point.
        (False, b"") if no number begins with `text`.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return False, b""
    return bool(found[1]), (found[2] + (found[3] or b"")).lstrip(b"0")
