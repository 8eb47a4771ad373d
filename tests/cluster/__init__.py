"""Tests against the Kubernetes cluster that KUBECONFIG names: `make test-cluster IMAGE=turnstile:TAG`.

The cluster has KubeRay's operator and can pull the image, which k8s/Dockerfile made of this tree. The tests use the
namespace `turnstile`, which must not exist yet, and remove it.
"""
