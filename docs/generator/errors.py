"""Page of the error codes. The codes and statuses are collected from the calls in the source that raise errors."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from deployments.shipped import REPOSITORY
from docs.generator.schema_tables import table
from grammar_workers.errors import GRAMMAR_CODES

INTRODUCTION = """\
# Error codes

This page lists all error codes, with the action to take. An error has OpenAI's body, `{"error": {"message", "type",
"param", "code"}}`. An error in a constraint also has a location: `pointer` or `position`. Errors of `/v1/messages`
have [Anthropic's](../messages.md) body. Programs should read `code`, or the HTTP status if `code` is `null`. Messages
may change in any release; codes and statuses follow the [version number](../versioning.md).

The table has "after `Retry-After`" if the client should wait for the number of seconds in this header of the response,
and then repeat the request. The packages of OpenAI and Anthropic repeat requests with status 408, 409, 429 and 5xx up
to twice, unless the response has `x-should-retry: false`. To disable retries, set `max_retries` (Python) or
`maxRetries` (TypeScript) of the client to 0. If a client repeats a request with the `x-request-id` of the first
response, the second response has [the tokens of the first](../performance.md#reproducible-outputs).

If an error occurs after the start of a stream, the error is an [event](../streaming.md#errors).
[Troubleshooting](../troubleshooting.md) has commands that find the cause of an error. The page also lists symptoms that
have no error code.

`make reference` generates this page from the code."""
_WITHOUT = """\
## Errors without a code

In the body of these errors, `code` is `null`."""

NO, AFTER, REPEAT = "no", "after `Retry-After`", "yes"
_REJECTED = "[rejected schemas](../constraints.md#when-a-schema-is-rejected)"
_SCHEMA = f"`param`, `pointer` and `position` show the location (see {_REJECTED})"
_LIMITS = "see the [limits](../features.md#limits)"

CODES: Mapping[str, tuple[str, str, str]] = {
    "budget_too_small": ("No output fits into `max_tokens` under `finish_within_budget`.", NO, "Raise `max_tokens`."),
    "context_length_exceeded": (
        "The prompt is longer than the model's context, or than `router.max_prompt_bytes`.",
        NO,
        "Shorten the prompt, or raise `max_model_len` or `router.max_prompt_bytes`.",
    ),
    "deadline_exceeded": (
        "The response took longer than `timeout_s` of the request or `router.timeout_s`. The message names the limit.",
        "no; the response has `x-should-retry: false`",
        "Allow more time, request fewer tokens, or add replicas.",
    ),
    "duplicate_key": ("An object of the body has a key twice.", NO, "Correct the program that writes the body."),
    "grammar_busy": (
        "The request is a `DELETE` of a grammar that the server still compiles.",
        REPEAT,
        "Repeat the request when the status of the grammar is `ready`.",
    ),
    "grammar_limit_exceeded": (
        "The specification exceeds a limit of the compiler. The message names the limit.",
        NO,
        f"Simplify the specification ({_LIMITS}). `turnstile check` shows the parts with the highest cost.",
    ),
    "grammar_not_found": (
        "No grammar that the tenant may use has this key. The grammar was evicted, or another version of the server or "
        "another tenant has compiled it.",
        NO,
        "Send the constraint, or `POST` it to `/v1/grammars` again.",
    ),
    "grammar_timeout": (
        "The model replica did not get the grammar within `engine.grammar_timeout_s`.",
        REPEAT,
        "Add compilers if they are overloaded. Set `engine.grammar_timeout_s` above `compiler.compile_timeout_s`.",
    ),
    "host_not_allowed": (
        "The server listens on a loopback address, and the `Host` header of the request has another name.",
        NO,
        "Use `localhost`, or add the name to `TURNSTILE_HOSTS`.",
    ),
    "internal_error": (
        "Server error. The log of the router or model replica has the traceback with the `x-request-id`.",
        REPEAT,
        "Report the error if it happens again.",
    ),
    "invalid_api_key": (
        "The API key is missing or not valid.",
        NO,
        "Send `Authorization: Bearer KEY` or `x-api-key: KEY`.",
    ),
    "invalid_grammar": ("The specification is malformed.", NO, f"Correct the specification: {_SCHEMA}."),
    "invalid_json": (
        "The body is not JSON, or a large body has too many keys, objects or lists.",
        NO,
        "Correct the program that writes the body.",
    ),
    "invalid_messages": (
        "The chat template of the model rejects the messages.",
        NO,
        "Change the messages. The error message has the reason that the template gives.",
    ),
    "invalid_prefix": (
        "The request has `continue_final_message`, and no output that the constraint allows starts with the last "
        "message.",
        NO,
        "Change the last message, or leave `continue_final_message` out.",
    ),
    "invalid_prompt": ("The prompt has no tokens, or tokens that cannot be used.", NO, "Change the prompt."),
    "invalid_request": ("The settings contradict each other, or the engine rejects them.", NO, "See `param`."),
    "invalid_resume": (
        "The router resumes an output on another replica, but the grammar does not allow the earlier tokens "
        "(`emitted_token_ids`).",
        NO,
        "Report the error: only routers send this field.",
    ),
    "invalid_token_id": ("A token ID is outside of the vocabulary.", NO, "See `param`."),
    "invalid_value": (
        "A field, parameter or header has a value that is not allowed.",
        NO,
        "See `param` and the message.",
    ),
    "model_not_found": (
        "The server has no model or adapter with this name.",
        NO,
        "Send a name that `GET /v1/models` lists.",
    ),
    "no_chat_template": ("The model has no chat template, and the request is a chat.", NO, "Use `/v1/completions`."),
    "no_thinking": (
        "The request turns reasoning on, but the model has no reasoning section.",
        NO,
        "Leave out the field that `param` names.",
    ),
    "not_finite": (
        "The model computed infinite or undefined logits.",
        NO,
        "Check `dtype` (float16 overflows where bfloat16 does not) and the weights.",
    ),
    "not_owner": (
        "The request is a `DELETE` of a grammar of another tenant.",
        NO,
        "Use the API key of the owner or of an administrator.",
    ),
    "not_ready": (
        "The application is starting or was deleted. In a response of `/health`: a deployment does not respond.",
        REPEAT,
        "Wait until the start has ended. If the error persists, read the logs.",
    ),
    "out_of_memory": (
        "The memory of a process has grown by `process_growth_mb` since its start.",
        REPEAT,
        "Repeat the request after a few seconds. If it happens again, add memory or replicas.",
    ),
    "rate_limit_exceeded": (
        "The tenant has reached its rate limit or `concurrent_requests`. The message names the limit.",
        AFTER,
        "Send fewer requests, or raise the limit.",
    ),
    "router_lost": (
        "The router process ended, or no router can be reached.",
        "yes; after `Retry-After` if the response has this header",
        "Repeat the request. If the error persists, read the logs of the routers.",
    ),
    "server_full": (
        "A queue has reached its limit: `max_waiting`, `max_queued_requests`, or the limit of one tenant.",
        "yes; after `Retry-After` if the response has this header",
        "Repeat the request later. If the error persists, add replicas of the deployment.",
    ),
    "shutting_down": (
        "The server is shutting down.",
        AFTER,
        "Repeat the request. If there is another server, use that server.",
    ),
    "store_key_mismatch": (
        "Compilers and model replicas have different values of `TURNSTILE_STORE_HMAC_KEY`.",
        NO,
        "Set one value on all nodes, and restart the processes that have a different value.",
    ),
    "too_many_connections": (
        "One client address has more connections than `TURNSTILE_CONNECTIONS_PER_ADDRESS`.",
        AFTER,
        "Reuse connections. If the address is a load balancer, add it to `TURNSTILE_TRUSTED_PROXIES`.",
    ),
    "too_many_particles": (
        "`conditional_sampling.particles` is above the server's limit.",
        NO,
        "Send fewer particles.",
    ),
    "unavailable": (
        "The engine of a model replica has ended. The router has already tried other replicas.",
        REPEAT,
        "Repeat the request. If the error persists, read the logs of the model replicas.",
    ),
    "unenforced_not_allowed": ("The server does not allow `on_unsupported: report`.", NO, "Leave the field out."),
    "unknown_field": (
        "The body has a field that the API does not have.",
        NO,
        "Correct the name of the field, or leave the field out.",
    ),
    "unsatisfiable_grammar": ("No output matches the specification.", NO, f"Correct the specification: {_SCHEMA}."),
    "unsupported_by_engine": (
        "The engine of this server does not support a field of the request.",
        NO,
        "Leave out the field that `param` names ([features of the engines](engines.md)).",
    ),
    "unsupported_encoding": ("The body is compressed.", NO, "Send the body uncompressed, without `Content-Encoding`."),
    "unsupported_grammar": (
        "The specification has a keyword or a combination that cannot be enforced exactly.",
        NO,
        f"Change the specification, or send `on_unsupported: report`: {_SCHEMA}.",
    ),
}
"""Code -> meaning, whether to repeat the request, action."""

WITHOUT_CODE: Mapping[int, tuple[str, str, str]] = {
    400: (
        "The body is not a JSON object, `Content-Type` is not `application/json`, or the request is not valid HTTP.",
        NO,
        "Correct the request.",
    ),
    403: ("HAProxy does not allow the request.", NO, "Correct the request."),
    404: ("The path does not exist. The message names a similar path.", NO, "Correct the address (`base_url`)."),
    405: ("The path does not support the method.", NO, "See [the paths](http.md#paths)."),
    408: (
        "The headers or the body did not arrive in time.",
        REPEAT,
        "Check the network of the client, or raise `router.body_timeout_s`.",
    ),
    413: ("The body is larger than `router.max_body_bytes`.", NO, "Send a smaller body, or raise the limit."),
    426: (
        "The header `Upgrade` of the request names another protocol than HTTP.",
        NO,
        "Leave the header `Upgrade` out.",
    ),
    429: (
        "The memory for incoming large bodies is full, or HAProxy rejects the request.",
        AFTER,
        "Repeat the request.",
    ),
    500: ("HAProxy has an internal error.", REPEAT, "Report the error if it happens again."),
}
"""Status -> meaning, whether to repeat the request, action, for errors without a code. FastAPI raises 405."""

_RAISED = ("ApiError", "RequestError", "Reply", "HTTPException", "cls", "super().__init__")
"""Names of the calls that make an error. `cls` is called in a class method of `ApiError`."""


def errors() -> str:
    """Return the page as Markdown."""
    columns = ["code", "HTTP status", "meaning", "repeat the request?", "what to do"]
    found, without = found_codes()
    rows = [(f"`{code}`", ", ".join(map(str, sorted(found[code]))), *CODES[code]) for code in sorted(found)]
    bare = [(str(status), *WITHOUT_CODE[status]) for status in sorted(without | {405})]
    own, rest = table(columns, rows), table(["HTTP status", *columns[2:]], bare)
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
    """Yield the statuses and codes of each call that makes an error, if they are constants in the source."""
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
    """Yield the possible values of a constant or a conditional expression of constants."""
    if isinstance(node, ast.IfExp):
        yield from _constants(node.body)
        yield from _constants(node.orelse)
    elif isinstance(node, ast.Constant):
        yield node.value
