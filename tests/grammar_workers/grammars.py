"""Grammars in both notations, the same language in each, and the characters to vary texts with."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sample:
    """`lark` and `gbnf` mean the same; `exhaustive` is the length up to which all texts over `alphabet` are tried."""

    lark: str
    gbnf: str
    alphabet: str
    exhaustive: int = 0


GRAMMARS: dict[str, Sample] = {
    "arithmetic": Sample(
        r"""
        start: sum
        ?sum: sum ("+" | "-") product | product
        ?product: product ("*" | "/") atom -> multiplied
            | atom
        atom.2: /[0-9]/+ | "(" sum ")" | "-" atom
        """,
        r"""
        root ::= root [+-] product | product
        product ::= product [*/] atom | atom
        atom ::= [0-9]+ | "(" root ")" | "-" atom
        """,
        "1+(-*)",
        4,
    ),
    "ambiguous pairs": Sample('start: start start | "a"', 'root ::= root root | "a"', "ab", 6),
    "ambiguous triples": Sample(
        'start: start start start | start start | "a" | "b"?',
        'root ::= root root root | root root | "a" | "b"?',
        "abc",
        4,
    ),
    "parentheses": Sample('start: ("(" start ")")*', 'root ::= ("(" root ")")*', "()", 7),
    "palindromes": Sample(
        'start: "a" start "a" | "b" start "b" | "a" | "b"',
        'root ::= "a" root "a" | "b" root "b" | "a" | "b"',
        "ab",
        7,
    ),
    "same number": Sample('start: "a" start "b" |', 'root ::= "a" root "b" |', "ab", 8),
    "mutual left recursion": Sample(
        """
        start: left "x" | "r"
        left: middle "y" | "q" | left "l"
        middle: start "z" | left
        """,
        """
        root ::= left "x" | "r"
        left ::= middle "y" | "q" | left "l"
        middle ::= root "z" | left
        """,
        "xyzrql",
        4,
    ),
    "hidden left recursion": Sample(
        'start: maybe start "s" | "t"\nmaybe: "m"?', 'root ::= maybe root "s" | "t"\nmaybe ::= "m"?', "mst", 6
    ),
    "units in a circle": Sample(
        'start: first | "(" start ")"\nfirst: second | "f"\nsecond: first | "s" | start "."',
        'root ::= first | "(" root ")"\nfirst ::= second | "f"\nsecond ::= first | "s" | root "."',
        "fs.()",
        5,
    ),
    "dangling else": Sample(
        'start: "i" start | "i" start "e" start | "s"',
        'root ::= "i" root | "i" root "e" root | "s"',
        "ies",
        7,
    ),
    "counts": Sample(
        'start: ("a" ~ 2..3 start? "b" ~ 2)',
        'root ::= "a"{2,3} root? "b"{2}',
        "ab",
        9,
    ),
    "prefix of another": Sample(
        'start: word "!" | start ";" start\nword: /[a-c]+/ | "ab" word?',
        'root ::= word "!" | root ";" root\nword ::= [a-c]+ | "ab" word?',
        "abc!;",
        5,
    ),
    "json": Sample(
        r"""
        start: value
        value: object | array | STRING | NUMBER | "true" | "false" | "null"
        object: "{" [pair ("," pair)*] "}"
        pair: STRING ":" value
        array: "[" [value ("," value)*] "]"
        STRING: "\"" (/[^"\\\n]/ | "\\" /["\\bfnrt\/]/ | "\\u" /[0-9a-f]/ ~ 4)* "\""
        NUMBER: "-"? ("0" | /[1-9][0-9]*/) ("." /[0-9]+/)? ("e"i ("+" | "-")? /[0-9]+/)?
        %ignore /[ \t\n]+/
        """,
        r"""
        root   ::= ws value ws
        value  ::= object | array | string | number | "true" | "false" | "null"
        object ::= "{" ws (pair (ws "," ws pair)* ws)? "}"
        pair   ::= string ws ":" ws value
        array  ::= "[" ws (value (ws "," ws value)* ws)? "]"
        string ::= "\"" ([^"\\\n] | "\\" ["\\bfnrt/] | "\\u" [0-9a-f]{4})* "\""
        number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
        ws     ::= [ \t\n]*   # any
        """,
        '{}[]",:1a\\ t',
    ),
    "queries": Sample(
        r"""
        start: select (";" select)* ";"?
        select: "select"i columns "from"i NAME where?
        columns: "*" | column ("," column)*
        column: NAME | "count" "(" column ")"
        where: "where"i condition
        condition: condition ("and"i | "or"i) condition | "not"i condition | "(" condition ")" | NAME ("=" | "<") term
        term: NAME | INT | ESCAPED | "(" select ")"
        NAME: /[a-z][a-z0-9_]{0,9}/
        ESCAPED: "'" /[^'\n]/* "'"
        INT: "0".."9"+
        %ignore " "
        """,
        r"""
        root      ::= ws select (";" ws select)* (";" ws)?
        select    ::= [sS] [eE] [lL] [eE] [cC] [tT] ws columns [fF] [rR] [oO] [mM] ws name where?
        columns   ::= "*" ws | column ("," ws column)*
        column    ::= name | "count" ws "(" ws column ")" ws
        where     ::= [wW] [hH] [eE] [rR] [eE] ws condition
        condition ::= condition ([aA] [nN] [dD] | [oO] [rR]) ws condition | [nN] [oO] [tT] ws condition
                    | "(" ws condition ")" ws | name [=<] ws term
        term      ::= name | [0-9]+ ws | "'" [^'\n]* "'" ws | "(" ws select ")" ws
        name      ::= [a-z] [a-z0-9_]{0,9} ws
        ws        ::= " "*
        """,
        "select*fromwhere =1(')",
    ),
}
