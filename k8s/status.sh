#!/bin/sh
# Says whether what was applied is what serves: k8s/status.sh [SECONDS]. It looks again for SECONDS (default 0), and ends
# with 0 if the applied image and Serve config are the ones that serve and every pod is ready; else with 1 and the reason.
# `kubectl wait --for=condition=Ready` cannot tell: the condition stays True while an old application serves on.
set -u
NAMESPACE=${NAMESPACE:-turnstile}
SERVICE=${SERVICE:-turnstile}
deadline=$(($(date +%s) + ${1:-0}))

service() { kubectl get rayservice "$SERVICE" --namespace "$NAMESPACE" --output "jsonpath=$1"; }

# In the head pod: the Serve config that was applied (standard input) beside the one that Serve has, and its state.
COMPARE='
import json, sys, urllib.request, yaml
wanted = yaml.safe_load(sys.stdin)["applications"][0]
with urllib.request.urlopen("http://localhost:8265/api/serve/applications/", timeout=20) as answer:
    found = json.load(answer)["applications"].get(wanted["name"])
if found is None:
    sys.exit("the application is not deployed yet")
if found["status"] != "RUNNING":
    # The reason is at the end of a traceback.
    sys.exit("\n    ".join(["application " + found["status"], *found["message"].strip().splitlines()[-6:]]))
if (found["deployed_app_config"] or {}).get("args") != wanted["args"]:
    sys.exit("the Serve config that was applied is not deployed yet")
'

look() {
    generation=$(service '{.metadata.generation} {.status.observedGeneration}') || return 1
    [ "${generation% *}" = "${generation#* }" ] || { echo "the operator has not seen the change yet"; return 1; }
    upgrade=$(service '{.status.conditions[?(@.type=="UpgradeInProgress")].status}')
    [ "$upgrade" = False ] || {
        echo "an upgrade is in progress: $(service '{.status.pendingServiceStatus.rayClusterName}')"
        service '{range .status.pendingServiceStatus.applicationStatuses.*}{"application "}{.status}{"\n"}{.message}{"\n"}{end}' | sed '/^$/d' | tail -n 6
        pods
        return 1
    }
    ready=$(service '{.status.conditions[?(@.type=="Ready")].status}')
    cluster=$(service '{.status.activeServiceStatus.rayClusterName}')
    [ "$ready" = True ] && [ -n "$cluster" ] || { echo "no cluster serves yet"; pods; return 1; }
    head=$(kubectl get pods --namespace "$NAMESPACE" --selector "ray.io/cluster=$cluster,ray.io/node-type=head" --output name)
    reason=$(service '{.spec.serveConfigV2}' | kubectl exec --stdin --namespace "$NAMESPACE" "$head" --container ray-head -- \
        python -c "$COMPARE" 2>&1) || {
        echo "$reason" | grep -v '^command terminated with'
        pods # Often the cause: Serve waits for a replica whose pod cannot start.
        return 1
    }
    pods
}

# Prints pods that are not ready, with the reason that the kubelet or the scheduler gives; fails if there are any.
pods() {
    waiting=$(kubectl get pods --namespace "$NAMESPACE" --output 'jsonpath={range .items[*]}{.metadata.name}{"\t"}{.status.conditions[?(@.type=="Ready")].status}{"\t"}{.status.conditions[?(@.type=="PodScheduled")].message}{.status.initContainerStatuses[*].state.waiting.message} {.status.containerStatuses[*].state.waiting.reason} {.status.containerStatuses[*].state.waiting.message}{"\n"}{end}' |
        awk -F '\t' '$2 != "True" { print $1 "\t" $3 }')
    [ -n "$waiting" ] || return 0
    printf '%s\n' "$waiting" | while IFS="$(printf '\t')" read -r pod reason; do
        case $reason in
        *[!\ ]*) ;;
        *) # It runs. A probe that fails is told by an event alone.
            reason=$(kubectl get events --namespace "$NAMESPACE" --field-selector "involvedObject.name=$pod,type=Warning" \
                --sort-by=.lastTimestamp --output 'jsonpath={.items[-1:].message}') ;;
        esac
        echo "pod not ready: $pod ${reason:-(its containers are starting)}"
    done
    return 1
}

while :; do
    reason=$(look) && { echo "serves what was applied"; exit 0; }
    [ "$(date +%s)" -lt "$deadline" ] || { echo "$reason"; exit 1; }
    case $reason in *DEPLOY_FAILED*) echo "$reason"; exit 1 ;; esac
    sleep 5
done
