"""Formats of tool calls that parsers of vLLM judge. The tests with vLLM import this module without other test tools."""

from __future__ import annotations

from deployments.chat.tool_formats import ToolFormatName

JUDGED_BY_VLLM: set[ToolFormatName] = {
    "hermes", "llama3", "mistral_list", "mistral", "deepseek_v3", "deepseek_v3_1", "kimi_k2", "granite3", "functools",
    "cohere", "jamba", "apertus", "longcat", "internlm2", "granite_20b", "qwen3_coder", "seed_oss", "glm4_5", "glm4_7",
    "minimax_m2", "deepseek_v3_2", "pythonic", "function_gemma", "gemma4", "lfm2", "olmo3", "deepseek_v4",
}  # fmt: skip
"""Formats that a parser of vLLM reads, too, in `tests/vllm/test_tool_parsers.py`, which compares this list with its
own."""

THOUGHTS_NOT_JUDGED: set[ToolFormatName] = set()
"""Formats whose calls end the reasoning (`ends_thoughts`), and for which vLLM has no parser of the reasoning."""
