r"""Unicode properties as `\p{..}` names them: general categories, scripts and binary properties, short and long."""

from __future__ import annotations

import re

import regex

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ -]*(=[A-Za-z][A-Za-z0-9_ -]*)?")


def property_characters(name: str) -> Charset | None:
    r"""The characters that have the property that `\p{name}` names; None when there is no such property.

    `name` is a value of General_Category (`Lu`, `Uppercase_Letter`), a script (`Greek`, `Script=Greek`, `sc=Grek`),
    `Script_Extensions` or a binary property (`Alphabetic`). The tables are those of the package `regex`.
    """
    if not _NAME.fullmatch(name):
        return None
    try:
        return charset.matching(rf"\p{{{name}}}", properties=True)
    except regex.error:
        return None
