"""Do tags, recursive grammars and JSON Schemas nested in one another allow exactly the right texts?

    python -m tests.grammar_workers.nestings --count 500 --seed 1

Each nesting is compiled, walked at random, and every walk is changed at random. `lark` (Earley) judges the grammars,
the tags and the order of all parts, and `jsonschema` each JSON value. Prints a table. Exit status 1 if a verdict is
wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from functools import cached_property
from typing import Any

import jsonschema
import lark
from tqdm import tqdm

from grammar_workers import GrammarError, TokenFSM, Vocabulary, compile_grammar

# The special tokens, and the characters that stand for them in the texts of the judge.
TOKENS = {"<|user|>": "\ue000", "<|assistant|>": "\ue001"}
VOCABULARY = Vocabulary(
    [*(bytes([byte]) for byte in range(256)), b'{"', b'": ', b"((", b"))", b", ", b"</t", None, None, None],
    [262],
    {"<|end|>": 262, "<|user|>": 263, "<|assistant|>": 264},
)
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"b": {"$ref": "#"}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "boolean"}},
    {"type": "string", "maxLength": 3, "pattern": "^[a-c()]*$"},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 20}, "maxItems": 2},
    {"enum": [None, True, {"a": [1]}]},
    {"type": "integer", "minimum": -20, "maximum": 120},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True},
]
# Rules of grammars; HOLE stands for a JSON value, a token or a text.
GRAMMARS = [
    'start: "(" start ")" | HOLE',
    'start: "<" [start ("," start)*] ">" | HOLE | "w"',
    'start: term ("+" term)*\nterm: "(" start ")" | NAME ("(" [start ("," start)*] ")")? | "#" HOLE\nNAME: /[u-z]+/',
    'start: start "*" atom | atom\natom: "(" start ")" | "$" HOLE',
    'start: "p" two "."\ntwo: HOLE | "q" start? two "!"',
    'start: "(" start ")" HOLE | "o"',
    'start: HOLE ("(" start ")")*',
    'start: ("(" start ")")? "e" HOLE ";"',
    'start: "(" start ")" start | "." HOLE?',
]
GENERIC = """
_v: _o | _l | _s | _n | "true" | "false" | "null"
_o: "{" [_s ": " _v (", " _s ": " _v)*] "}"
_l: "[" [_v (", " _v)*] "]"
_s: /"[^"\\\\\\x00-\\x1f\\ue000\\ue001]*"/
_n: /-?(0|[1-9][0-9]*)/
"""


class Nesting:
    """A random specification, and its judge.

    Attributes:
        specification: What is compiled.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._schemas: list[Any] = []
        self._rules: list[str] = []
        kind = rng.random()
        if kind < 0.3:
            rules, text = self._grammar()
            self.specification: Any = {"type": "grammar", "syntax": "lark", "text": text}
        else:
            rules, made = self._format(rng.randrange(1, 4))
            self.specification = {"type": "structural_tag", "format": made}
        self._start = rules

    @cached_property
    def _judge(self) -> lark.Lark:
        values = [f"json{number}: _v" for number in range(len(self._schemas))]
        text = "\n".join([f"start: {self._start}", *self._rules, *values, GENERIC])
        return lark.Lark(
            text,
            parser="earley",
            lexer="dynamic_complete",
            keep_all_tokens=True,
            maybe_placeholders=False,
            ambiguity="explicit",
        )

    def allows(self, text: str) -> bool:
        """Return the verdict of `lark` and `jsonschema`."""
        try:
            return self._holds(self._judge.parse(text))
        except lark.exceptions.LarkError:
            return False

    def _holds(self, node: Any) -> bool:
        """Return whether all JSON values are valid in one of the ways to read a text."""
        if not isinstance(node, lark.Tree):
            return True
        if node.data == "_ambig":
            return any(map(self._holds, node.children))
        if node.data.startswith("json"):
            value = json.loads("".join(node.scan_values(lambda _: True)))
            return jsonschema.Draft202012Validator(self._schemas[int(node.data[4:])]).is_valid(value)
        return all(map(self._holds, node.children))

    def _schema(self) -> tuple[str, Any]:
        self._schemas.append(self._rng.choice(SCHEMAS))
        return f"json{len(self._schemas) - 1}", self._schemas[-1]

    def _grammar(self, *, holes: bool = True) -> tuple[str, str]:
        """Return the name of the judge's start rule, and the grammar."""
        text, prefix = self._rng.choice(GRAMMARS), f"g{len(self._rules)}_"
        judged, given = text, text
        while "HOLE" in given:
            kind = self._rng.random() if holes else 1
            if kind < 0.6:
                name, schema = self._schema()
                hole, wanted = f"%json {json.dumps(schema)}", name
            elif kind < 0.8:
                hole = self._rng.choice(list(TOKENS))
                wanted = json.dumps(TOKENS[hole], ensure_ascii=False)
            else:
                hole = wanted = '"h"'
            given, judged = given.replace("HOLE", hole, 1), judged.replace("HOLE", wanted, 1)
        for name in ("start", "term", "atom", "two", "NAME"):
            renamed = prefix.upper() + name if name.isupper() else prefix + name
            judged = judged.replace(f"{name}:", f"{renamed}:")
            judged = judged.replace(f"{name} ", f"{renamed} ").replace(f"{name})", f"{renamed})")
            judged = judged.replace(f"{name}?", f"{renamed}?").replace(f"{name}\n", f"{renamed}\n")
        self._rules.append(judged)
        return f"{prefix}start", given

    def _format(self, depth: int) -> tuple[str, Any]:
        """Return the judge's expression and the format."""
        rng = self._rng
        kind = rng.randrange(3 if depth == 0 else 9)
        if kind == 0:
            name, schema = self._schema()
            return name, {"type": "json_schema", "json_schema": schema}
        if kind == 1:
            name, text = self._grammar()
            return name, {"type": "grammar", "grammar": text, "syntax": "lark"}
        if kind == 2:
            name = rng.choice(list(TOKENS))
            return json.dumps(TOKENS[name], ensure_ascii=False), {"type": "token", "token": name}
        if kind in (3, 4):
            rule, content = self._format(depth - 1)
            begin, end = rng.choice([("<t>", "</t>"), ("[[", "]]"), ("@", "~")])
            return f'"{begin}" ({rule}) "{end}"', {"type": "tag", "begin": begin, "content": content, "end": end}
        if kind in (5, 6):
            parts = [self._format(depth - 1) for _ in range(rng.randrange(2, 4))]
            between = [('"|"', {"type": "const_string", "value": "|"})] * (len(parts) - 1)
            mixed = [parts[0], *(part for pair in zip(between, parts[1:], strict=True) for part in pair)]
            return " ".join(f"({rule})" for rule, _ in mixed), {
                "type": "sequence",
                "elements": [one for _, one in mixed],
            }
        if kind == 7:
            parts = [self._format(depth - 1) for _ in range(2)]
            return " | ".join(f"({rule})" for rule, _ in parts), {"type": "or", "elements": [one for _, one in parts]}
        rule, content = self._format(depth - 1)
        return f'(({rule}) "&")*', {
            "type": "star",
            "content": {"type": "sequence", "elements": [content, {"type": "const_string", "value": "&"}]},
        }


def accepts(fsm: TokenFSM, text: str) -> bool:
    """Return whether the tokens of `text` lead to an end."""
    state = fsm.initial_state
    for token in encoded(text, fsm.vocabulary):
        state = fsm.next_state(state, token)
        if state < 0:
            return False
    return fsm.is_terminal(state)


def encoded(text: str, vocabulary: Vocabulary) -> list[int]:
    """Return the token IDs of a text of the judge."""
    special = {character: vocabulary.special_tokens[name] for name, character in TOKENS.items()}
    pieces = re.split(f"([{''.join(special)}])", text)
    return [
        token for one in pieces for token in ([special[one]] if one in special else vocabulary.encode(one.encode()))
    ]


def walked(fsm: TokenFSM, rng: random.Random, longest: int) -> str:
    """Return a text of the judge: a random walk, which ends on a shortest way."""
    vocabulary = fsm.vocabulary
    names = {vocabulary.special_tokens[name]: character for name, character in TOKENS.items()}
    state, tokens = fsm.initial_state, list[int]()
    for _ in range(rng.randrange(longest)):
        allowed = sorted(fsm.allowed_tokens(state) - set(vocabulary.eos_token_ids))
        if not allowed:
            break
        tokens.append(rng.choice(allowed))
        state = fsm.next_state(state, tokens[-1])
    tokens += fsm.shortest_completion(state)
    texts = (names[token].encode() if token in names else vocabulary.token_bytes(token) for token in tokens)
    return b"".join(texts).decode()


def changed(text: str, rng: random.Random) -> str:
    """Return `text` with one part left out, doubled, moved or replaced."""
    if not text:
        return "("
    first, last = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    part = text[first : min(last, first + 6)]
    rest = text[:first] + text[first + len(part) :]
    place = rng.randrange(len(rest) + 1)
    return rng.choice(
        [
            rest,
            text[:first] + part + text[first:],
            rest[:place] + part + rest[place:],
            rest[:place] + rng.choice("()[]<>,+|&h1w") + rest[place:],
        ]
    )


def judge(seed: int, found: Counter[str], walks: int = 4) -> list[str]:
    """Compare one random nesting with its judge, count verdicts in `found`, and return the wrong ones."""
    rng = random.Random(f"nesting {seed}")
    nesting = Nesting(rng)
    try:
        fsm = compile_grammar(nesting.specification, VOCABULARY)
    except GrammarError as error:
        found["rejected"] += 1
        found[f"  {error.message[:40]}"] += 1
        return []
    found["compiled"] += 1
    wrong = []
    for _ in range(walks):
        text = walked(fsm, rng, 24)
        if len(text) > 80:
            continue
        found["walks"] += 1
        if not nesting.allows(text):
            wrong.append(f"{seed}: {text!r} came out, {json.dumps(nesting.specification)}")
        for _ in range(3):
            other = changed(text, rng)
            verdict = accepts(fsm, other)
            found["changed texts that match" if verdict else "changed texts that do not match"] += 1
            if verdict != nesting.allows(other):
                wrong.append(f"{seed}: {other!r} is {verdict}, {json.dumps(nesting.specification)}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="nestings (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    arguments = parser.parse_args()
    found: Counter[str] = Counter()
    wrong = []
    for index in tqdm(range(arguments.count), "nestings", disable=None):
        wrong += judge(arguments.seed * 1_000_000 + index, found)
    for name, many in sorted(found.items()):
        print(f"{name:50} {many:6}")
    print(*wrong, f"wrong: {len(wrong)}", sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
