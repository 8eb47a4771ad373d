"""The short form: docs/kubernetes.md from the first command to the last, then secrets that are missing or do not fit.

The tests depend on each other, in this order.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import pytest

from tests.cluster.conftest import NAMESPACE, Shell, eventually, of_section
from tests.k8s.test_monitoring import rules

pytestmark = pytest.mark.timeout(1500)
CHAT = "http://localhost:8000/v1/chat/completions"
FORWARD = f"kubectl port-forward --namespace {NAMESPACE} service/turnstile-serve-svc 8000 >/dev/null & sleep 4"


def ask(shell: Shell, request_id: str) -> dict[str, Any]:
    """The response to a request with a grammar that nobody has compiled, and its status as `status`."""
    schema = {"type": "object", "properties": {f"p{secrets.token_hex(6)}": {"type": "boolean"}}}
    body = {
        "messages": [{"role": "user", "content": "Say it."}],
        "max_tokens": 20,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    headers = f"-H 'Content-Type: application/json' -H 'x-request-id: {request_id}'"
    command = f"curl --silent --max-time 60 -w '\\n%{{http_code}}' {CHAT} {headers} -d '{json.dumps(body)}'"
    answer, _, status = shell.run(f"{FORWARD}; {command}").rstrip().rpartition("\n")
    return {**json.loads(answer), "status": int(status)}


def metrics(shell: Shell) -> str:
    """What all Ray pods export."""
    names = shell.run(f"kubectl get pods -n {NAMESPACE} -l ray.io/node-type -o name").split()
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    return "".join(
        shell.run(f"kubectl get --raw {path}/{name.removeprefix('pod/')}:8080/proxy/metrics", fails=True)
        for name in names
    )


def replace_secret(shell: Shell, **values: str) -> None:
    """Make the Secret hold `values` alone."""
    literals = " ".join(f"--from-literal={name}={value}" for name, value in values.items())
    create = f"kubectl create secret generic turnstile-store -n {NAMESPACE} {literals} --dry-run=client -o yaml"
    shell.run(f"{create} | kubectl replace -f -")


def secret(shell: Shell) -> dict[str, str]:
    found = shell.json(f"kubectl get secret turnstile-store -n {NAMESPACE}")["data"]
    decode = "base64 --decode"
    return {name: shell.run(f"printf %s {value} | {decode}") for name, value in found.items()}


def delete_model_pods(shell: Shell) -> None:
    shell.run(f"kubectl delete pods -n {NAMESPACE} -l app.kubernetes.io/component=model --grace-period=5")


def test_it_serves_by_the_commands_of_the_document(shell: Shell) -> None:
    shell.run(of_section("3. Secrets"))
    assert "serves what was applied" in shell.run(of_section("4. Deploy"))


def test_the_first_request(shell: Shell) -> None:
    output = shell.run(of_section("5. The first request"))
    assert '{"id"' in output, output
    answer = json.loads(output[output.index('{"id"') :])
    assert json.loads(answer["choices"][0]["message"]["content"]).keys() == {"name", "age"}


def test_nothing_differs_after_the_first_apply(shell: Shell) -> None:
    assert shell.run(f"kubectl diff -k {shell.overlay}") == ""


def test_metrics_that_alerts_watch_are_there(shell: Shell) -> None:
    wanted = {
        name
        for rule in rules()
        for name in re.findall(r"ray_turnstile_\w+(?:_total|_length|_sequences|_open)", rule["expr"])
    }
    assert len(wanted) >= 6
    eventually(lambda: all(f"{name}{{" in metrics(shell) for name in wanted))
    assert 'event="key_mismatch"' in metrics(shell), "before there was any"


def test_a_request_is_followed_through_the_logs(shell: Shell) -> None:
    request_id = f"follow-{secrets.token_hex(4)}"
    assert ask(shell, request_id)["status"] == 200
    command = of_section("8. Monitor", -1).replace("REQUEST_ID", request_id)
    lines = eventually(lambda: shell.run(command, fails=True))
    assert {"grammar", "model"} <= set(re.findall(r"-(grammar|model)-worker-", lines))
    assert '"message": "compiled grammar' in lines


def test_a_missing_key_is_named(shell: Shell) -> None:
    values = secret(shell)
    replace_secret(shell, TURNSTILE_REDIS_PASSWORD=values["TURNSTILE_REDIS_PASSWORD"])
    delete_model_pods(shell)
    eventually(lambda: "couldn't find key TURNSTILE_STORE_HMAC_KEY in Secret" in shell.run("k8s/status.sh", fails=True))
    replace_secret(shell, **values)
    assert "serves what was applied" in shell.run("k8s/status.sh 600")


def test_another_key_is_named_counted_and_logged(shell: Shell) -> None:
    values = secret(shell)
    replace_secret(shell, **{**values, "TURNSTILE_STORE_HMAC_KEY": secrets.token_hex(32)})
    delete_model_pods(shell)
    shell.run("k8s/status.sh 600")
    answer = ask(shell, "mismatch")
    assert (answer["status"], answer["error"]["code"]) == (503, "store_key_mismatch")
    logs = shell.run(f"kubectl logs -n {NAMESPACE} -l app.kubernetes.io/component=model -c ray-worker --tail=-1")
    assert "replace the pods that started with another one" in logs
    counted = r'store_events_total\{[^}]*event="key_mismatch"[^}]*\} [1-9]'
    eventually(lambda: re.search(counted, metrics(shell)))
    replace_secret(shell, **values)
    delete_model_pods(shell)
    shell.run("k8s/status.sh 600")
    assert ask(shell, "right-again")["status"] == 200


def test_it_is_removed_by_the_commands_of_the_document(shell: Shell) -> None:
    shell.run(of_section("9. Remove"))
    eventually(lambda: not shell.run(f"kubectl get namespace {NAMESPACE} --ignore-not-found"))
