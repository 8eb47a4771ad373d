"""The codes of errors, from the places in the source that raise them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from deployments.shipped import REPOSITORY
from docs.generator.schema_tables import table
from grammar_workers.errors import GRAMMAR_CODES

INTRODUCTION = """\
# Error codes

Made by `make reference` from the source. An error has OpenAI's body, `{"error": {"message", "type", "param", "code"}}`,
and for a grammar specification `pointer` or `position`; under `/v1/messages` it has
[Anthropic's](../messages.md). Programs should read `code`, and where there is none the status: messages may change
between releases, codes and statuses change as [versioning.md](../versioning.md) says.

"After `Retry-After`" means that the response has this header, in seconds. Clients of OpenAI and Anthropic repeat 408,
409, 429 and 5xx twice by themselves: set their `max_retries` (`maxRetries`) to 0 where that is not wanted. A repeated
request with the `x-request-id` of the first one gives the same tokens.

In a stream that has begun, the error is the last event. `/v1/responses` then has OpenAI's three codes in
`response.failed`: `rate_limit_exceeded` for 429, `invalid_prompt` for 400, `server_error` otherwise."""
_WITHOUT = """\
## Errors without a code

Their `code` is `null`."""

NO, AFTER, REPEAT = "no", "after `Retry-After`", "yes"
_SCHEMA = (
    "`param`, `pointer` and `position` name the place; [constraints.md](../constraints.md#when-a-schema-is-refused)"
)
_LIMITS = "the limits are in [features.md](../features.md)"

CODES: Mapping[str, tuple[str, str, str]] = {
    "budget_too_small": ("No output fits into `max_tokens` under `finish_within_budget`.", NO, "Raise `max_tokens`."),
    "context_length_exceeded": (
        "The prompt is longer than the model's context, or than `router.max_prompt_bytes`.",
        NO,
        "Shorten the prompt, or raise `max_length` (vLLM: `max_model_len`) or `router.max_prompt_bytes`.",
    ),
    "deadline_exceeded": (
        "The request's `timeout_s` or the server's `router.timeout_s` has passed; the message names it.",
        REPEAT,
        "Allow more time, ask for fewer tokens, or add replicas.",
    ),
    "duplicate_key": ("An object of the body has one key twice.", NO, "Mend the program that writes the body."),
    "grammar_busy": ("`DELETE` of a grammar that is still compiled.", REPEAT, "Wait until its status is `ready`."),
    "grammar_limit_exceeded": (
        "The specification needs more than a limit of the compiler, which the message names.",
        NO,
        f"Simplify the specification; {_LIMITS}. `turnstile check` shows what costs most.",
    ),
    "grammar_not_found": (
        "No grammar has this key: it made room for others, or was compiled for another version or by another tenant.",
        NO,
        "Send the specification, or `POST` it to `/v1/grammars` again.",
    ),
    "grammar_timeout": (
        "The grammar did not arrive within `engine.grammar_timeout_s`.",
        REPEAT,
        "Look at the grammar tier: is it overloaded, or does it allow compilations a longer time than this?",
    ),
    "host_not_allowed": (
        "A server on a loopback address was called by another name.",
        NO,
        "Call it `localhost`, or add the name to `TURNSTILE_HOSTS`.",
    ),
    "internal_error": (
        "A fault of the server. The log of the router or model replica has the traceback, under the `x-request-id`.",
        REPEAT,
        "Report it if it happens again.",
    ),
    "invalid_api_key": ("The API key is missing or not valid.", NO, "Send `Authorization: Bearer KEY`."),
    "invalid_grammar": ("The specification is malformed.", NO, f"Mend it: {_SCHEMA}."),
    "invalid_json": ("The body is not JSON.", NO, "Mend the program that writes the body."),
    "invalid_messages": (
        "The model's chat template refuses the messages.",
        NO,
        "The message has the template's reason.",
    ),
    "invalid_prefix": (
        "With `continue_final_message`: no output that the constraint allows begins with the last message.",
        NO,
        "Change the message, or do not continue it.",
    ),
    "invalid_prompt": ("The prompt has no tokens, or tokens that cannot be used.", NO, "Change the prompt."),
    "invalid_request": ("Settings that contradict each other, or that the engine refuses.", NO, "See `param`."),
    "invalid_resume": (
        "The tokens to resume from are not allowed by the grammar (`emitted` of the [vLLM](../engines.md#requests)"
        " plugin).",
        NO,
        "Send the tokens that were generated under this grammar.",
    ),
    "invalid_token_id": ("A token id is outside of the vocabulary.", NO, "See `param`."),
    "invalid_value": (
        "A field, parameter or header has a value that is not allowed.",
        NO,
        "See `param` and the message.",
    ),
    "model_not_found": ("No such model or adapter.", NO, "`GET /v1/models` lists them."),
    "no_chat_template": ("The model has no chat template.", NO, "Use `/v1/completions`."),
    "no_thinking": ("The request asks for reasoning, which the model does not have.", NO, "Leave `param` out."),
    "not_finite": (
        "The model computed infinite or undefined numbers.",
        NO,
        "Check `dtype` (float16 overflows where bfloat16 does not) and the weights.",
    ),
    "not_owner": ("The grammar belongs to another tenant.", NO, "Only its owner or an administrator discards it."),
    "not_ready": ("The application starts or was deleted; from `/health`: a tier does not answer.", REPEAT, "Wait."),
    "out_of_memory": (
        "A process has reached its bound on memory (`process_growth_mb`).",
        REPEAT,
        "Repeat it after a few seconds. If it happens again: more memory, or more replicas.",
    ),
    "rate_limit_exceeded": (
        "The tenant's rate limit, or its `concurrent_requests`; the message names the limit.",
        AFTER,
        "Send less, or raise the limit.",
    ),
    "router_lost": (
        "The router died, or none can be reached.",
        "yes; after `Retry-After` where it is sent",
        "Repeat the request. If it lasts: logs of the routers.",
    ),
    "server_full": (
        "A queue is full: `max_waiting`, `max_queued_requests`, or the new grammars or prompts of one tenant.",
        "yes; after `Retry-After` where it is sent",
        "Repeat it more slowly. If it lasts: more replicas of the tier.",
    ),
    "shutting_down": ("The server was told to stop.", AFTER, "Repeat it, on another server if there is one."),
    "store_key_mismatch": (
        "Compilers and model replicas have different values of `TURNSTILE_STORE_HMAC_KEY`.",
        NO,
        "Give all of them the same key and restart those that have another one.",
    ),
    "too_many_connections": (
        "One address holds more connections than `TURNSTILE_CONNECTIONS_PER_ADDRESS`.",
        AFTER,
        "Reuse connections. If the address is a load balancer, add it to `TURNSTILE_TRUSTED_PROXIES`.",
    ),
    "too_many_particles": ("`conditional_sampling.particles` is above the server's limit.", NO, "Ask for fewer."),
    "unavailable": (
        "The engine of a model replica has ended. The router repeats the call on others before a client sees it.",
        REPEAT,
        "Logs of the model replicas.",
    ),
    "unenforced_not_allowed": ("The server does not allow `on_unsupported: report`.", NO, "Leave the field out."),
    "unknown_field": ("The body has a field that does not exist here.", NO, "Correct the name, or leave it out."),
    "unsatisfiable_grammar": ("No output matches the specification.", NO, f"Mend it: {_SCHEMA}."),
    "unsupported_by_engine": (
        "The engine of this server does not have a setting of the request.",
        NO,
        "Leave `param` out ([which engine has what](engines.md)).",
    ),
    "unsupported_encoding": ("The body is compressed.", NO, "Send it without `Content-Encoding`."),
    "unsupported_grammar": (
        "The specification has a keyword or a combination that cannot be enforced exactly.",
        NO,
        f"Change it, or send `on_unsupported: report`. {_SCHEMA}.",
    ),
}
"""Code -> what it means, whether to repeat the request, what to do."""

WITHOUT_CODE: Mapping[int, tuple[str, str, str]] = {
    400: (
        "The body is no JSON object or `Content-Type` is not `application/json`; or the request is not valid HTTP.",
        NO,
        "Mend the request.",
    ),
    403: ("HAProxy does not allow the request.", NO, "Mend the request."),
    404: ("No such path. The message names a path that is near.", NO, "Correct the address (`base_url`)."),
    405: ("The path has no such method.", NO, "See [the paths](http.md#paths)."),
    408: ("Header or body did not arrive in time.", REPEAT, "The client's network; `router.body_timeout_s`."),
    413: ("The body is larger than `router.max_body_bytes`.", NO, "Send less, or raise it."),
    426: ("The request asks for another protocol than HTTP.", NO, "Leave `Upgrade` out."),
    429: (
        "Large bodies that arrive slowly fill the memory for them, or HAProxy refuses the request.",
        AFTER,
        "Repeat it.",
    ),
    500: ("A fault of HAProxy.", REPEAT, "Report it if it happens again."),
}
"""Status -> the same, of errors without a code. 405 is the framework's own."""

_RAISED = ("ApiError", "RequestError", "Reply", "HTTPException", "cls", "super().__init__")
"""Calls that make an error; the second last is a class method of `ApiError`."""


def errors() -> str:
    """The document as Markdown."""
    columns = ["code", "status", "what it means", "repeat the request", "what to do"]
    found, without = found_codes()
    rows = [(f"`{code}`", ", ".join(map(str, sorted(found[code]))), *CODES[code]) for code in sorted(found)]
    bare = [(str(status), *WITHOUT_CODE[status]) for status in sorted(without | {405})]
    own, rest = table(columns, rows), table(["status", *columns[2:]], bare)
    return f"{INTRODUCTION}\n\n{own}\n\n{_WITHOUT}\n\n{rest}\n"


def found_codes() -> tuple[dict[str, set[int]], set[int]]:
    """Return the statuses of each code, and the statuses of errors without a code, as the source raises them."""
    found: dict[str, set[int]] = defaultdict(set, {code: {400} for code in GRAMMAR_CODES})
    without = {404}  # of the framework
    for status, codes in _calls():
        for code in codes:
            found[code] |= status
        without |= set() if codes else status
    return dict(found), without


def _calls() -> Iterator[tuple[set[int], set[str]]]:
    """Statuses and codes of each call that makes an error. Codes that another error brings along are not constants."""
    for package in ("deployments", "gpu_workers"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in _RAISED:
                    yield from _call(node, assigned)


def _call(call: ast.Call, assigned: list[ast.Assign]) -> Iterator[tuple[set[int], set[str]]]:
    kind, given = ast.unparse(call.func), {one.arg: one.value for one in call.keywords}
    status: ast.expr = ast.Constant(400)
    if kind in ("RequestError", "super().__init__"):
        status = given.get("status", status)
        if "code" not in given:
            return
    elif not call.args:
        return
    else:
        status = call.args[0]
    code = call.args[2] if kind == "Reply" and len(call.args) > 2 else given.get("code", ast.Constant(None))
    statuses = [value for value in _constants(status) if isinstance(value, int)]
    if isinstance(code, ast.Name):
        values = (one.value for one in assigned if ast.unparse(one.targets[0]) == code.id)
        code = next(values, code)
    if not statuses or not isinstance(code, ast.Constant | ast.IfExp):
        return
    codes = [value for value in _constants(code) if isinstance(value, str)]
    if len(statuses) == len(codes):  # one choice between both
        yield from (({one}, {other}) for one, other in zip(statuses, codes, strict=True))
    else:
        yield set(statuses), set(codes)


def _constants(node: ast.expr) -> Iterator[object]:
    """The values that a constant, or a choice between constants, may have."""
    if isinstance(node, ast.IfExp):
        yield from _constants(node.body)
        yield from _constants(node.orelse)
    elif isinstance(node, ast.Constant):
        yield node.value
