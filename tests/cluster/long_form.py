"""The long form: `python -m tests.cluster.long_form [SCENARIO ...]` harms a service on a cluster under load.

Deploys `k8s/base` with one of each tier at the least and two at the most, then runs the scenarios in their order. Needs
`KUBECONFIG`, two image tags (`--image`, `--next-image`) that the cluster can pull, and a way to the Service from here
(`--url`; its cluster IP by default). Prints a row for each scenario: requests by outcome, the longest time in which a
request heard nothing, and the seconds until everything that was there before is there again.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.conftest import NAMESPACE, Shell, block, of_section
from tests.cluster.load import Load, Sent

STREAMS = 16
STORM = 20
CALM_S = 15
"""Load before a scenario strikes, and after everything is there again."""
WHOLE_WITHIN_S = 600
OUTCOMES = ("valid", "refused", "broken", "lost", "different", "invalid")
TIERS = {"compilers": "GrammarCompiler", "models": "ModelReplica"}

KILL = """
import os, signal, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError:
        continue
    if line.startswith(b"ray::ServeReplica") and sys.argv[1].encode() in line:
        print("killed", pid, line)
        os.kill(int(pid), signal.SIGKILL)
"""
"""Run in a pod: ends the replicas of the deployment that the argument names."""


class Cluster:
    """The deployed service."""

    def __init__(self, folder: Path, image: str) -> None:
        self.image = image
        self.shell = Shell(folder, image)

    def kubectl(self, command: str, *, fails: bool = False) -> str:
        return self.shell.run(f"kubectl --namespace {NAMESPACE} {command}", fails=fails)

    def overlay(self, *, least: int, image: str | None = None, variant: int = 0) -> None:
        """Write the overlay: `k8s/base`, `least` to two of each tier. Another variant replaces all replicas."""
        name, _, tag = (image or self.image).rpartition(":")
        serve = (self.shell.clone / "k8s/base/serve.yaml").read_text()
        for old, new in (
            (
                "router:\n      replicas: 2",
                f"router:\n      replicas: {least}\n      max_prompt_bytes: {100_000 - variant}",
            ),
            ("min_replicas: 2", f"min_replicas: {least}"),
            ("max_replicas: 8", "max_replicas: 2\n        downscale_delay_s: 30"),
            ("processes: 3", "processes: 1"),
            ("memory_limit_mb: 2560", f"memory_limit_mb: {2560 - variant}"),
            ("max_model_len: 2048", f"max_model_len: {2048 - variant}"),
        ):
            assert old in serve, old
            serve = serve.replace(old, new)
        (self.shell.overlay / "serve.yaml").write_text(serve)
        bounds = "".join(
            f"    - {{op: replace, path: /spec/rayClusterConfig/workerGroupSpecs/{group}/{field}, value: {value}}}\n"
            for group in (0, 1)
            for field, value in (("replicas", 1), ("minReplicas", 1), ("maxReplicas", 2))
        )
        (self.shell.overlay / "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: turnstile\n"
            "resources: [../turnstile/k8s/base]\ncomponents: [../turnstile/k8s/components/serve-config]\n"
            f"images:\n- name: turnstile\n  newName: {name}\n  newTag: {tag}\n"
            "configMapGenerator:\n- {name: serve-config, behavior: replace, files: [serve.yaml]}\n"
            f"patches:\n- target: {{kind: RayService}}\n  patch: |\n{bounds}"
        )

    def apply(self) -> None:
        self.shell.run(f"kubectl apply -k {self.shell.overlay}")

    def status(self, within_s: int = 900) -> str:
        return self.shell.run(f"k8s/status.sh {within_s}", fails=True, timeout_s=within_s + 60)

    def pods(self, selector: str = "ray.io/node-type") -> list[str]:
        """Names of pods that run and are not told to end."""
        found = self.shell.json(f"kubectl get pods --namespace {NAMESPACE} --selector '{selector}'")["items"]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def ready(self) -> collections.Counter[str]:
        """Count the ready pods of each component."""
        found = self.shell.json(f"kubectl get pods --namespace {NAMESPACE}")["items"]
        return collections.Counter(
            pod["metadata"]["labels"].get("app.kubernetes.io/component", "")
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        )

    def head(self) -> str:
        """The head of the cluster that serves."""
        field = "jsonpath={.status.activeServiceStatus.rayClusterName}"
        active = self.kubectl(f"get rayservice turnstile --output {field}").strip()
        (name,) = self.pods(f"ray.io/node-type=head,ray.io/cluster={active}")
        return name

    def replicas(self) -> dict[str, tuple[int, int]]:
        """Of each tier how many replicas Serve wants and how many run."""
        head = self.head()
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{head}:8265/proxy/api/serve/applications/"
        deployments = json.loads(self.shell.run(f"kubectl get --raw {path}"))["applications"]["turnstile"][
            "deployments"
        ]
        found = {}
        for name, deployment in deployments.items():
            running = [replica for replica in deployment["replicas"] if replica["state"] == "RUNNING"]
            found[name] = (deployment["target_num_replicas"], len(running))
        return found

    def whole(self, before: collections.Counter[str]) -> bool:
        """Return True if as many pods are ready as before, and all wanted replicas run."""
        try:
            replicas = self.replicas()
        except (AssertionError, ValueError, KeyError):
            return False
        now = self.ready()
        return all(now[name] >= count for name, count in before.items()) and all(
            wanted <= running for wanted, running in replicas.values()
        )


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A harm to the service, and the sign that it is over (by default, that everything is there again)."""

    strike: Callable[[Cluster], object]
    over: Callable[[Cluster], bool] | None = None
    prepare: Callable[[Cluster], object] = lambda it: None
    """Before the load begins."""


def delete(component: str) -> Scenario:
    return Scenario(
        lambda it: it.kubectl(f"delete pod {it.pods(f'app.kubernetes.io/component={component}')[0]} --wait=false")
    )


def crash(component: str) -> Scenario:
    """The pod goes at once, as with its node."""
    return Scenario(
        lambda it: it.kubectl(
            f"delete pod {it.pods(f'app.kubernetes.io/component={component}')[0]} --grace-period=0 --force --wait=false"
        )
    )


def evict(component: str) -> Scenario:
    def strike(it: Cluster) -> None:
        (name, *_) = it.pods(f"app.kubernetes.io/component={component}")
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        it.shell.run(f"echo '{json.dumps(body)}' | kubectl create --raw {path} -f -")

    return Scenario(strike)


def kill(component: str, deployment: str) -> Scenario:
    def strike(it: Cluster) -> None:
        for name in it.pods(f"app.kubernetes.io/component={component}"):
            if "killed" in it.kubectl(f"exec {name} --container ray-worker -- python -c '{KILL}' {deployment}"):
                return
        raise AssertionError(f"no pod has a {deployment}")

    return Scenario(strike)


def drain(it: Cluster) -> None:
    head = it.head()
    nodes = it.kubectl("get pods --output jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}'")
    where = dict(line.split() for line in nodes.splitlines())
    (node, *_) = sorted({place for name, place in where.items() if "worker" in name} - {where[head]}) or [where[head]]
    print(f"  drains {node}; the head is on {where[head]}; {where}", file=sys.stderr, flush=True)
    it.shell.run(
        f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data --timeout=400s; kubectl uncordon {node}",
        timeout_s=500,
    )


def change(variant: int) -> Scenario:
    """A change of `serve.yaml` that replaces all replicas."""

    def strike(it: Cluster) -> None:
        it.overlay(least=2, variant=variant)
        it.apply()

    return Scenario(strike, served)


def upgrade(it: Cluster, image: str) -> None:
    it.image = image
    it.overlay(least=1)
    it.apply()
    time.sleep(10)


def broken_upgrade(it: Cluster) -> None:
    """To an image that nobody has, and back as the document says."""
    name, _, tag = it.image.rpartition(":")
    it.overlay(least=1, image=f"{name}:0.0.0-missing")
    it.apply()
    while "ImagePull" not in it.status(0):
        time.sleep(3)
    it.shell.run(block("6. Change", "pendingServiceStatus").replace("newTag: 0.2.0", f"newTag: {tag}"))


def refused_change(it: Cluster) -> None:
    """Apply a `serve.yaml` with a mistake in it, and the last good one half a minute after it was refused."""
    it.overlay(least=2, variant=2)
    path = it.shell.overlay / "serve.yaml"
    good = path.read_text()
    path.write_text(good.replace("max_prompt_bytes", "max_prompt_byte"))
    it.apply()
    while "Extra inputs are not permitted" not in it.status(0):
        time.sleep(3)
    time.sleep(30)
    path.write_text(good)
    it.apply()


def make_volume(it: Cluster) -> None:
    """Make a volume for Ray's state where the cluster's default storage class provisions none."""
    classes = json.loads(it.kubectl("get storageclass --output json"))["items"]
    default = "storageclass.kubernetes.io/is-default-class"
    found = next((one for one in classes if one["metadata"].get("annotations", {}).get(default) == "true"), None)
    if found is not None and found["provisioner"] != "kubernetes.io/no-provisioner":
        return
    if it.kubectl("get persistentvolume turnstile-test --ignore-not-found"):
        return
    node = json.loads(it.kubectl("get nodes --output json"))["items"][0]["metadata"]["name"]
    path = {"path": "/var/tmp/turnstile-test", "type": "DirectoryOrCreate"}
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "turnstile-test"},
        "spec": {
            "capacity": {"storage": "4Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": found["metadata"]["name"] if found else "",
            "hostPath": path,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
    # The kubelet makes the folder root's, and `fsGroup` does not hold for it.
    container = {
        "name": "open",
        "image": "redis:7.2-alpine",
        "command": ["chmod", "777", "/volume"],
        "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "turnstile-volume", "namespace": "default"},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "volume", "hostPath": path}],
        },
    }
    for one in (volume, pod):
        it.shell.run(f"echo '{json.dumps(one)}' | kubectl create -f -")
    it.shell.run(
        "kubectl wait pod turnstile-volume -n default --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s; "
        "kubectl delete pod turnstile-volume -n default"
    )


def keep_state(it: Cluster) -> None:
    """Deploy with what `k8s/overlays/high-availability` adds to the GPU overlay, on nodes without GPUs."""
    parts = it.shell.clone / "k8s/overlays/high-availability"
    for part in ("gcs-redis.yaml", "rayservice.yaml"):
        shutil.copy(parts / part, it.shell.overlay)
    it.overlay(least=2, variant=3)
    kustomization = it.shell.overlay / "kustomization.yaml"
    text = kustomization.read_text().replace("k8s/base]", "k8s/base, gcs-redis.yaml]")
    kustomization.write_text(f"{text}- {{path: rayservice.yaml, target: {{kind: RayService}}}}\n")
    make_volume(it)
    it.shell.run(block("3. Secrets", "turnstile-gcs"))
    it.apply()
    time.sleep(10)
    assert "serves what was applied" in it.status(), it.status(0)


def served(it: Cluster) -> bool:
    return "serves what was applied" in it.status(0)


def scenarios(next_image: str) -> dict[str, Scenario | None]:
    """All scenarios in their order; None is scaling, with one of each at the least."""
    return {
        "nothing": Scenario(lambda it: None),
        "in-place change, one of each to two": change(1),
        "a compiler killed": kill("grammar", "GrammarCompiler"),
        "a model replica killed": kill("model", "ModelReplica"),
        "a router killed": kill("grammar", "Router"),
        "a grammar pod deleted": delete("grammar"),
        "a model pod deleted": delete("model"),
        "a grammar pod gone at once": crash("grammar"),
        "a model pod gone at once": crash("model"),
        "a grammar pod evicted": evict("grammar"),
        "a model pod evicted": evict("model"),
        "in-place change of two of each": change(2),
        "a change that is refused, and back": Scenario(refused_change, served),
        "the cache's Redis deleted": delete("grammar-cache"),
        "a node drained": Scenario(drain),
        "the head deleted": delete("head"),
        "an upgrade": Scenario(lambda it: upgrade(it, next_image), served),
        "an upgrade to a missing image, and back": Scenario(broken_upgrade, served),
        "scaling for one tenant (wanted/ready/down)": None,
        "the head deleted, with high availability": Scenario(delete("head").strike, prepare=keep_state),
    }


async def harm(cluster: Cluster, url: str, scenario: Scenario, streams: int = STREAMS) -> tuple[list[Sent], float]:
    """All requests, and the seconds until the service was whole again."""
    await asyncio.to_thread(scenario.prepare, cluster)
    before = cluster.ready()
    load = Load(url, streams=streams)
    await asyncio.sleep(CALM_S)
    struck = time.monotonic()
    await asyncio.to_thread(scenario.strike, cluster)
    over = scenario.over or (lambda it: it.whole(before))
    await asyncio.sleep(2)
    while not await asyncio.to_thread(over, cluster):
        if time.monotonic() > struck + WHOLE_WITHIN_S:
            break
        await asyncio.sleep(2)
    whole_s = time.monotonic() - struck
    await asyncio.sleep(CALM_S)
    return await load.stop(), whole_s


async def scale(cluster: Cluster, url: str) -> tuple[list[Sent], dict[str, list[float]]]:
    """Load of one tenant of both kinds: seconds until a tier wants two, has two, and wants one again without load."""
    began = time.monotonic()
    load = Load(url, streams=STREAMS, storm=STORM)
    wants: dict[str, list[float]] = {name: [] for name in TIERS}

    async def until(reached: Callable[[int, int], bool], within_s: float) -> None:
        begun = time.monotonic()
        waiting = set(TIERS)
        while waiting and time.monotonic() < begun + within_s:
            # Empty while Serve builds the application.
            replicas = await asyncio.to_thread(cluster.replicas)
            for name in sorted(waiting):
                if TIERS[name] in replicas and reached(*replicas[TIERS[name]]):
                    wants[name].append(round(time.monotonic() - begun))
                    waiting.discard(name)
            await asyncio.sleep(1)
        for name in waiting:
            wants[name].append(float("inf"))

    await until(lambda wanted, running: wanted > 1, 180)
    await until(lambda wanted, running: running > 1, 300)
    sent = await load.stop()
    print(f"  load of {time.monotonic() - began:.0f} s", file=sys.stderr)
    await until(lambda wanted, running: wanted == 1, 900)
    return sent, wants


def row(name: str, sent: list[Sent], whole: str) -> str:
    outcomes = collections.Counter(one.outcome for one in sent)
    silence = max((one.silence_s for one in sent), default=0.0)
    cells = [name, len(sent), *(outcomes[outcome] for outcome in OUTCOMES), f"{silence:.1f}", whole]
    return "| " + " | ".join(map(str, cells)) + " |"


def explain(sent: list[Sent]) -> None:
    """Print what went wrong, each kind once, with how often."""
    details = collections.Counter(
        f"{one.kind} {one.outcome}: {re.sub('[0-9a-f]{8,}', '#', one.detail)[:180]}"
        for one in sent
        if one.outcome != "valid"
    )
    for detail, count in details.most_common(8):
        print(f"  {count} x {detail}", file=sys.stderr, flush=True)
    clock = time.time() - time.monotonic()
    for one in [one for one in sent if one.outcome in ("broken", "lost")][:8]:
        begun, ended = (time.strftime("%H:%M:%S", time.gmtime(clock + moment)) for moment in (one.began, one.ended))
        print(f"  {one.kind} {one.outcome}, sent {begun}, ended {ended}, silent {one.silence_s:.1f} s", file=sys.stderr)
    slow = sorted((one for one in sent if one.silence_s > 10), key=lambda one: -one.silence_s)[:4]
    for one in slow:
        print(
            f"  silent {one.silence_s:.1f} s: {one.kind} {one.outcome} {one.detail[:100]}", file=sys.stderr, flush=True
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.long_form", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="a part of its name (default: all)")
    parser.add_argument("--image", default="turnstile:0.2.0")
    parser.add_argument("--next-image", default="turnstile:0.2.1")
    parser.add_argument(
        "--streams", type=int, default=STREAMS, help="at a time, but for scaling (default: %(default)s)"
    )
    parser.add_argument("--url", help="of the Service; default: its cluster IP")
    parser.add_argument("--deployed", action="store_true", help="a run of this program has deployed it already")
    options = parser.parse_args()
    if not os.environ.get("KUBECONFIG"):
        parser.error("set KUBECONFIG: this needs a cluster of its own (see CONTRIBUTING.md)")
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), options.image)
        if not options.deployed:
            cluster.overlay(least=1)
            cluster.shell.run(of_section("3. Secrets"))
            began = time.monotonic()
            cluster.apply()
            assert "serves what was applied" in cluster.status(), cluster.status(0)
            print(f"deployed after {time.monotonic() - began:.0f} s", flush=True)
        address = cluster.kubectl("get service turnstile-serve-svc --output jsonpath={.spec.clusterIP}").strip()
        url = options.url or f"http://{address}:8000"
        bad = 0
        print(
            f"| what was done | requests | {' | '.join(OUTCOMES)} | longest silence (s) | whole again (s) |", flush=True
        )
        print("|---" * (len(OUTCOMES) + 4) + "|", flush=True)
        for name, scenario in scenarios(options.next_image).items():
            if options.names and not any(part in name for part in options.names):
                continue
            if scenario is None:
                sent, wants = asyncio.run(scale(cluster, url))
                whole = "; ".join(f"{tier} {'/'.join(f'{s:.0f}' for s in found)}" for tier, found in wants.items())
            else:
                sent, whole_s = asyncio.run(harm(cluster, url, scenario, options.streams))
                whole = f"{whole_s:.0f}"
            print(row(name, sent, whole), flush=True)
            explain(sent)
            bad += sum(one.outcome == "invalid" for one in sent)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
