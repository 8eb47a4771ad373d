"""Bodies of many errors, or of many parts: each is a path and the largest JSON text of a size."""

from __future__ import annotations

from collections.abc import Callable

HELLO = '"messages":[{"role":"user","content":"x"}]'
CHAT, TEXT, RESPONSES, GRAMMARS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/grammars"

Body = Callable[[int], bytes]


def repeated(begin: str, item: str, end: str) -> Body:
    """As many times `item` as there is room for."""

    def make(size: int) -> bytes:
        room = size - len(begin) - len(end)
        return (begin + ",".join([item] * (room // (len(item) + 1))) + end).encode()

    return make


def numbered(begin: str, value: str, end: str) -> Body:
    """An object of as many keys as there is room for."""

    def make(size: int) -> bytes:
        many = (size - len(begin) - len(end)) // (len(value) + 10)
        return (begin + ",".join(f'"{number:06}":{value}' for number in range(many)) + end).encode()

    return make


def filled(begin: str, text: str, end: str) -> Body:
    """A text of about the size."""
    return lambda size: (begin + text * ((size - len(begin) - len(end)) // len(text)) + end).encode()


def outputs(begin: str, item: str, end: str) -> Body:
    return repeated(f'{{{HELLO},"structured_outputs":{{{begin}', item, f"{end}}}}}")


def schema(begin: str, item: str, end: str) -> Body:
    return repeated(f'{{{HELLO},"response_format":{{"type":"json_schema","schema":{begin}', item, f"{end}}}}}")


CALL = '{"messages":[{"role":"assistant","tool_calls":['
TABLE = '"automaton":{"initial":0,"accepting":[0],"transitions":['
TAGS = '"structural_tag":{"type":"structural_tag","triggers":["a"],'

MANY_ERRORS: dict[str, tuple[str, Body]] = {
    "input of {}": (RESPONSES, repeated('{"input":[', "{}", "]}")),
    "input of numbers": (RESPONSES, repeated('{"input":[', "0", "]}")),
    "parts of input": (RESPONSES, repeated('{"input":[{"role":"user","content":[', "{}", "]}]}")),
    "thoughts": (RESPONSES, repeated('{"input":[{"type":"reasoning","summary":[', "0", "]}]}")),
    "include": (RESPONSES, repeated('{"input":"x","include":[', "0", "]}")),
    "tools of responses": (RESPONSES, repeated('{"input":"x","tools":[', "{}", "]}")),
    "messages of {}": (CHAT, repeated('{"messages":[', "{}", "]}")),
    "messages of null": (CHAT, repeated('{"messages":[', "null", "]}")),
    "parts of a message": (CHAT, repeated('{"messages":[{"role":"user","content":[', "{}", "]}]}")),
    "tool calls": (CHAT, repeated(CALL, "{}", "]}]}")),
    "tools": (CHAT, repeated(f'{{{HELLO},"tools":[', "{}", "]}")),
    "positions": (CHAT, outputs('"positions":[', "0", "]")),
    "one position": (CHAT, outputs('"positions":[[', "{}", "]]")),
    "accepting states": (CHAT, outputs('"automaton":{"initial":0,"accepting":[', "{}", '],"transitions":[]}')),
    "transitions": (CHAT, outputs('"automaton":{"initial":0,"accepting":[0],"transitions":[', "{}", "]}")),
    "tokens of a transition": (CHAT, outputs(f'{TABLE}{{"from":0,"to":0,"tokens":[', '""', "]}]}")),
    "choice": (CHAT, outputs('"choice":[', "0", "]")),
    "pattern": (CHAT, outputs('"pattern":[', "0", "]")),
    "pattern of triples": (CHAT, outputs('"pattern":[', "[0,0,0]", "]")),
    "banned words": (CHAT, outputs('"banned_words":[', "0", "]")),
    "banned words in an object": (CHAT, outputs('"banned_words":{"words":[', "0", "]}")),
    "banned words in free text": (CHAT, repeated(f'{{{HELLO},"banned_words":{{"words":[', "0", "]}}")),
    "all_of": (CHAT, outputs('"all_of":[', "{}", "]")),
    "tags": (CHAT, outputs(f'{TAGS}"tags":[', "{}", "]}")),
    "structures": (CHAT, outputs(f'{TAGS}"structures":[', "{}", "]}")),
    "triggers": (CHAT, outputs('"structural_tag":{"type":"structural_tag","structures":[],"triggers":[', "0", "]}")),
    "excludes": (
        CHAT,
        outputs('"structural_tag":{"type":"structural_tag","format":{"type":"any_text","excludes":[', "0", "]}}"),
    ),
    "stop": (CHAT, repeated(f'{{{HELLO},"stop":[', "0", "]}")),
    "stop tokens": (CHAT, repeated(f'{{{HELLO},"stop_token_ids":[', '""', "]}")),
    "logit_bias": (CHAT, numbered(f'{{{HELLO},"logit_bias":{{', "1e9", "}}")),
    "metadata of responses": (RESPONSES, numbered('{"input":"x","metadata":{', "1", "}}")),
    "unknown keys": (CHAT, numbered(f"{{{HELLO},", "1", "}")),
    "unknown keys of a message": (CHAT, numbered('{"messages":[{"role":"user","content":"x",', "1", "}]}")),
    "unknown keys of a tag": (CHAT, numbered(f'{{{HELLO},"structured_outputs":{{{TAGS}"tags":[{{', "1", "}]}}}")),
    "unknown keys of a specification": (GRAMMARS, numbered('{"specification":{"type":"regex",', "1", "}}")),
    "prompt": (TEXT, repeated('{"prompt":[', "{}", "]}")),
    "prompt of both": (TEXT, repeated('{"prompt":["a",', "0", "]}")),
    "choices of a specification": (GRAMMARS, repeated('{"specification":{"type":"choice","choices":[', "0", "]}}")),
    "specifications": (GRAMMARS, repeated('{"specification":{"type":"all_of","specifications":[', "0", "]}}")),
    "tags of a specification": (
        GRAMMARS,
        repeated('{"specification":{"type":"structural_tag","triggers":["a"],"tags":[', "{}", "]}}"),
    ),
}
"""Nothing in these is as it should be."""

MANY_PARTS: dict[str, tuple[str, Body]] = {
    "messages": (CHAT, repeated('{"messages":[', '{"role":"user","content":""}', "]}")),
    "parts": (CHAT, repeated('{"messages":[{"role":"user","content":[', '{"type":"text","text":""}', "]}]}")),
    "items": (RESPONSES, repeated('{"input":[', '{"role":"assistant","content":"abc"}', "]}")),
    "token ids": (TEXT, repeated('{"prompt":[', "1", "]}")),
    "positions": (CHAT, outputs('"positions":[', "[1]", "]")),
    "one position": (CHAT, outputs('"positions":[[', "1", "]]")),
    "transitions": (CHAT, outputs(TABLE, '{"from":0,"to":0,"pattern":"a"}', "]}")),
    "tokens of a transition": (CHAT, outputs(f'{TABLE}{{"from":0,"to":0,"tokens":[', "1", "]}]}")),
    "choices": (CHAT, outputs('"choice":[', '""', "]")),
    "all_of": (CHAT, outputs('"all_of":[', '{"type":"json_object"}', "]")),
    "stop": (CHAT, repeated(f'{{{HELLO},"stop":[', '"a"', "]}")),
    "banned words": (CHAT, outputs('"banned_words":[', '"a"', "]")),
    "annotations": (
        RESPONSES,
        repeated('{"input":[{"role":"user","content":[{"type":"text","text":"","annotations":[', "{}", "]}]}]}"),
    ),
    "numbers in an enum": (CHAT, schema('{"enum":[', "1", "]}")),
    "schemas": (CHAT, schema('{"allOf":[', "{}", "]}")),
    "lists in lists": (CHAT, schema('{"enum":[', "[[1],[2]]", "]}")),
    "an annotation": (CHAT, schema('{"default":[', "{}", "]}")),
    "an unknown keyword": (CHAT, schema('{"x":[', "{}", "]}")),
    "properties": (
        CHAT,
        numbered(
            f'{{{HELLO},"response_format":{{"type":"json_schema","schema":{{"properties":{{',
            '{"type":"integer"}',
            "}}}}",
        ),
    ),
    "parameters": (
        CHAT,
        numbered(f'{{{HELLO},"tools":[{{"type":"function","function":{{"name":"f","parameters":{{', "{}", "}}}]}"),
    ),
    "arguments": (
        CHAT,
        filled(
            f'{CALL}{{"id":"a","type":"function","function":{{"name":"f","arguments":"{{\\"a\\":[',
            "{},",
            '0]}"}]}]}',
        ),
    ),
    "a grammar": (CHAT, filled(f'{{{HELLO},"response_format":{{"type":"grammar","grammar":"', "a ", '"}}')),
    "empty lines": (CHAT, filled(f'{{{HELLO},"response_format":{{"type":"grammar","grammar":"', "\\n", '"}}')),
    "a pattern": (CHAT, filled(f'{{{HELLO},"response_format":{{"type":"regex","pattern":"', "(a|b)", '"}}')),
    "a prompt": (CHAT, filled('{"messages":[{"role":"user","content":"', "a b ", '"}]}')),
    "a long key": (CHAT, filled(f'{{{HELLO},"', "k", '":1}')),
    "a long type": (CHAT, filled(f'{{{HELLO},"response_format":{{"type":"', "k", '"}}')),
    "a long model": (CHAT, filled(f'{{{HELLO},"model":"', "k", '"}')),
    "a long keyword": (
        CHAT,
        filled(f'{{{HELLO},"response_format":{{"type":"json_schema","schema":{{"type":"', "k", '"}}}'),
    ),
    "a long property": (
        CHAT,
        filled(
            f'{{{HELLO},"response_format":{{"type":"json_schema","schema":{{"properties":{{"', "k", '":{"type":1}}}}}'
        ),
    ),
    "a long number": (CHAT, filled(f'{{{HELLO},"seed":', "9", "}")),
    "many numbers": (CHAT, repeated(f'{{{HELLO},"x":[', "9" * 4000, "]}")),
    "nesting": (CHAT, filled(f'{{{HELLO},"x":', "[", "")),
    "nested objects": (CHAT, repeated('{"x":[', '{"a":' * 150 + "0" + "}" * 150, "]}")),
    "a key again and again": (CHAT, repeated(f"{{{HELLO},", '"a":{}', "}")),
    "a key twice at the end": (CHAT, numbered(f"{{{HELLO},", "1", ',"000000":1}')),
    "spaces": (CHAT, filled(f"{{{HELLO},", "\n", '"x":1}')),
    "backslashes": (CHAT, filled(f'{{{HELLO},"user":"', "\\\\", '"}')),
    "escapes": (CHAT, filled(f'{{{HELLO},"user":"', "\\u00e9", '"}')),
}
"""Nothing, or one thing only, is wrong with what these hold, but its size."""
