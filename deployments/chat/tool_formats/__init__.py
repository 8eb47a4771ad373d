"""How families of models write tool calls: the table of all declarations, and which one a chat template belongs to.

A new family is a declaration in `families` and a line here; nothing else knows how any of them looks.
"""

from __future__ import annotations

import re
from typing import Literal

from deployments.chat.tool_formats.declaration import ToolFormat
from deployments.chat.tool_formats.families import (
    cohere,
    deepseek,
    functionary,
    gemma,
    generic,
    glm,
    granite,
    harmony,
    hermes,
    kimi,
    lists,
    llama,
    minimax,
    mistral,
    phi,
    pythonic,
    qwen,
)

ToolFormatName = Literal[
    "apertus",
    "cohere",
    "deepseek_v3",
    "deepseek_v3_1",
    "deepseek_v3_2",
    "deepseek_v4",
    "functionary_v3_1",
    "function_gemma",
    "functools",
    "gemma4",
    "glm4_5",
    "glm4_7",
    "granite3",
    "granite_20b",
    "harmony",
    "hermes",
    "internlm2",
    "jamba",
    "json",
    "kimi_k2",
    "llama3",
    "lfm2",
    "longcat",
    "minimax_m1",
    "minimax_m2",
    "mistral",
    "mistral_call_id",
    "mistral_list",
    "olmo3",
    "phi4_mini",
    "pythonic",
    "qwen3_coder",
    "seed_oss",
    "turnstile",
]

FORMATS: dict[ToolFormatName, ToolFormat] = {
    "harmony": harmony.HARMONY,
    "kimi_k2": kimi.KIMI_K2,
    "deepseek_v3": deepseek.DEEPSEEK_V3,
    "deepseek_v3_1": deepseek.DEEPSEEK_V3_1,
    "mistral_call_id": mistral.MISTRAL_CALL_ID,
    "mistral": mistral.MISTRAL,
    "mistral_list": mistral.MISTRAL_LIST,
    "cohere": cohere.COHERE,
    "phi4_mini": phi.PHI_4_MINI,
    "functools": phi.FUNCTOOLS,
    "granite3": granite.GRANITE_3,
    "minimax_m1": minimax.MINIMAX_M1,
    "minimax_m2": minimax.MINIMAX_M2,
    "deepseek_v3_2": deepseek.DEEPSEEK_V3_2,
    "deepseek_v4": deepseek.DEEPSEEK_V4,
    "seed_oss": qwen.SEED_OSS,
    "qwen3_coder": qwen.QWEN_3_CODER,
    "glm4_5": glm.GLM_4_5,
    "glm4_7": glm.GLM_4_7,
    "hermes": hermes.HERMES,
    "jamba": lists.JAMBA,
    "apertus": lists.APERTUS,
    "longcat": lists.LONGCAT,
    "internlm2": lists.INTERNLM_2,
    "granite_20b": granite.GRANITE_20B,
    "functionary_v3_1": functionary.FUNCTIONARY_3_1,
    "function_gemma": gemma.FUNCTION_GEMMA,
    "gemma4": gemma.GEMMA_4,
    "pythonic": pythonic.PYTHONIC,
    "lfm2": pythonic.LFM_2,
    "olmo3": pythonic.OLMO_3,
    "llama3": llama.LLAMA_3,
    "json": generic.JSON,
    "turnstile": generic.TURNSTILE,
}
"""By the names that the `tool_format` of a configuration takes; a chat template belongs to the first whose marks it
has. `turnstile` is for models that know no tools."""


def detected_format(chat_template: str | None) -> ToolFormatName:
    """The format of the model that this chat template was written for; `turnstile` for any other."""
    # Templates quote JSON and line ends in different ways inside their own string literals.
    text = (chat_template or "").replace('\\"', '"').replace("\\n", "\n")
    found = (name for name, one in FORMATS.items() if one.marks and all(mark in text for mark in one.marks))
    return next(found, "turnstile")


def renders_tools(chat_template: str | None) -> bool:
    """Whether the template tells the model which tools there are."""
    return re.search(r"\btools\b", chat_template or "") is not None


def takes_argument_text(chat_template: str | None) -> bool:
    """Whether the template puts the arguments of earlier calls into the prompt as they are, so that they must be JSON
    text: it neither writes JSON itself nor looks into them."""
    argument = r"""\barguments\b['"]?\]?\s*"""
    bare = re.search(rf"{argument}(?:[-+~]|\}}\}})", chat_template or "") is not None
    return bare and re.search(rf"{argument}(?:\||\.|is\b|%)", chat_template or "") is None
