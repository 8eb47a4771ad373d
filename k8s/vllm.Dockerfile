# syntax=docker/dockerfile:1
# The GPU image with vLLM in it, for the overlay vllm:
#   docker build -f k8s/vllm.Dockerfile -t turnstile-vllm k8s
ARG TURNSTILE=turnstile
FROM ${TURNSTILE}
USER root
# vLLM decides about torch and what belongs to it. It finds Turnstile's plugin by an entry point, which only an installed
# distribution has (the readme is part of its metadata).
RUN pip install --no-cache-dir vllm==0.29.0 \
    && touch /opt/turnstile/README.md \
    && pip install --no-cache-dir --no-deps --editable /opt/turnstile
USER 1000:1000
