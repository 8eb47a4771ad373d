"""Numbers by what they mean: 1, 1.0 and 10e-1 are one number, and so are 0, -0 and 0e7."""

from __future__ import annotations

import re
from typing import TypeAlias

NumberMeaning: TypeAlias = tuple[bool, bytes, int]
"""Whether it is negative, its digits without zeros on either side (none: it is 0), and the power of ten behind them."""
ZERO: NumberMeaning = (False, b"", 0)
_NUMBER = re.compile(rb"(-?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]*))?")
_MOST_DIGITS = 4000
"""Of an exponent; automata that were compiled allow three."""


def meaning_of(text: bytes) -> NumberMeaning | None:
    """What a JSON number means; None for anything else."""
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
    """Whether what has been read of a number may be the beginning of one that means `number`.

    Before the exponent only digits are compared, for an exponent can still move the point.
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
    # What the exponent must be for the digits to mean the number.
    needed = power + len(fraction or b"") - (len(digits) - len(wanted))
    if needed == 0:
        return not exponent.strip(b"0")
    if needed < 0 and exponent_sign != b"-" and (exponent or exponent_sign):
        return False
    if needed > 0 and exponent_sign == b"-":
        return False
    return str(abs(needed)).encode().startswith(exponent.lstrip(b"0"))


def sign_and_digits(text: bytes) -> tuple[bool, bytes]:
    """Whether a number of which `text` has been read is negative, and its digits so far without zeros on the left."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return False, b""
    return bool(found[1]), (found[2] + (found[3] or b"")).lstrip(b"0")
