"""`k8s/status.sh` with a `kubectl` that answers from a table, for states that a cluster is seldom in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from deployments.shipped import REPOSITORY

KUBECTL = """#!/bin/sh
case "$*" in
*observedGeneration*) echo "3 3" ;;
*UpgradeInProgress*) printf False ;;
*'"Ready")].status}') printf True ;;
*rayClusterName*) printf turnstile-a ;;
*serveConfigV2*) printf 'applications: []' ;;
*node-type=head*) printf pod/head ;;
*exec*) cat > /dev/null; printf "$APPLICATION"; test -z "$APPLICATION" ;;
*'get pods'*) printf "head\\tTrue\\t\\n$POD" ;;
*'get events'*'involvedObject.name=grammar-worker,'*) printf "$EVENT" ;;
*) echo "no answer to $*" >&2; exit 2 ;;
esac
"""
WAITING = "model-worker\tFalse\tcouldn't find key TURNSTILE_STORE_HMAC_KEY in Secret turnstile/turnstile-secrets\n"
RUNNING = "grammar-worker\tFalse\t  \n"


@pytest.mark.parametrize(
    ("application", "pod", "event", "told"),
    [
        ("", "", "", ["serves what was applied"]),
        ("", WAITING, "", ["pod not ready: model-worker couldn't find key"]),
        ("", RUNNING, "", ["pod not ready: grammar-worker (its containers are starting)"]),
        ("", RUNNING, "Readiness probe failed", ["pod not ready: grammar-worker Readiness probe failed"]),
        ("application DEPLOYING", "", "", ["application DEPLOYING"]),
        ("application DEPLOYING", WAITING, "", ["application DEPLOYING", "pod not ready: model-worker couldn't find"]),
    ],
)
def test_the_reason_is_told(tmp_path: Path, application: str, pod: str, event: str, told: list[str]) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "APPLICATION": application.replace("\n", "\\n"), "POD": pod, "EVENT": event}
    run = subprocess.run(
        ["sh", str(REPOSITORY / "k8s" / "status.sh")], env=environment, capture_output=True, text=True, timeout=200
    )
    assert run.returncode == bool(application or pod), run.stderr
    for words in told:
        assert words in run.stdout
    assert run.stdout.count("\n") == len(told)
