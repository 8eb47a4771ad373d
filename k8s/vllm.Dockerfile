# syntax=docker/dockerfile:1
# The GPU image with vLLM in it, for the overlay vllm:
#   docker build -f k8s/vllm.Dockerfile -t turnstile-vllm k8s
ARG TURNSTILE=turnstile
FROM ${TURNSTILE}
USER root
# vLLM decides about torch and what belongs to it. It finds Turnstile's plugin by an entry point of the installed wheel.
RUN pip install --no-cache-dir vllm==0.29.0
USER 1000:1000
