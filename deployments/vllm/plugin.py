"""The entry point `vllm.general_plugins`, which vLLM calls in each of its processes."""

from __future__ import annotations

import os


def register() -> None:
    """Puts Turnstile in the place of outlines where `TURNSTILE_VLLM` is set; imports nothing where it is not."""
    if os.environ.get("TURNSTILE_VLLM", "0").lower() not in ("", "0", "false", "no"):
        from deployments.vllm.installation import install

        install()
