"""What the tests of this folder read: built overlays, Serve configs, and schemas made strict."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
K8S = REPOSITORY / "k8s"
OVERLAYS = ["base", *sorted(f"overlays/{path.name}" for path in (K8S / "overlays").iterdir())]
SERVE_CONFIGS = sorted(str(path.relative_to(K8S)) for path in K8S.rglob("serve.yaml"))

Manifest = dict[str, Any]


def kustomize_command() -> list[str] | None:
    """The command that builds a folder, from whichever tool is on PATH; None without one."""
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") else None


@functools.cache
def _built(folder: Path) -> str:
    command = kustomize_command()
    assert command is not None
    result = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout


def build(folder: Path) -> list[Manifest]:
    """Every object of an overlay, as `kubectl apply -k` would send it."""
    return [manifest for manifest in yaml.safe_load_all(_built(folder)) if manifest]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def ray_service(manifests: list[Manifest]) -> Manifest:
    (service,) = of_kind(manifests, "RayService")
    return service


def ray_groups(service: Manifest) -> dict[str, Manifest]:
    """Group name -> group spec; the head is `head`."""
    cluster = service["spec"]["rayClusterConfig"]
    workers = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"], **workers}


def pod_templates(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Name -> pod template, of workloads and of Ray groups alike."""
    templates = {
        manifest["metadata"]["name"]: manifest["spec"]["template"]
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "StatefulSet")
    }
    groups = ray_groups(ray_service(manifests))
    return templates | {f"ray-{name}": group["template"] for name, group in groups.items()}


def ray_service_schema() -> dict[str, Any]:
    """JSON Schema of a `ray.io/v1` RayService that refuses unknown keys."""
    path = Path(__file__).with_name("data") / "rayservice-v1.schema.json.gz"
    return closed(json.loads(gzip.decompress(path.read_bytes())))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every object with named properties refuses others."""
    schema = copy.deepcopy(schema)
    _close(schema)
    return schema


def _close(node: Any) -> None:
    if isinstance(node, list):
        for child in node:
            _close(child)
    elif isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            node.setdefault("additionalProperties", False)
        for child in node.values():
            _close(child)
