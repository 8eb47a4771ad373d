"""Speculation under our masks inside vLLM: the tokens, and the frequencies, of no speculation.

The model has more logits than its tokenizer has tokens, likes the surplus ones best, and ends with either of two tokens.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from grammar_workers import Vocabulary
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.gpu_workers.test_rejection import chi_square_is_usual
from tests.vllm.answers import QUESTIONS
from tests.vllm.models import padded_model, random_eagle3_head
from tests.vllm.offline import Answer, EngineProcess, Request, Run

pytestmark = pytest.mark.timeout(900)  # the first start on a machine compiles kernels

WINDOW = 4
SYNC = {"async_scheduling": False}
SMALL_CACHE = {"num_gpu_blocks_override": 36, "block_size": 32}
ENDS = {1, 3}
PLAIN = ("none", "n-gram", "EAGLE-3", "EAGLE-3, async", "itself, async")
FORCED = ("n-gram + forced", "EAGLE-3 + forced", "n-gram + forced, small cache")
MANY = 800
CHOICES = ["yes", "yes7", "no", "not7!", "n7", "y#7"]
STOPS = (299, 274, 322, 61)
PATTERN = r"[a-z]{2,12}( [a-z#7]{1,9}){0,6}\."


def exact_requests() -> list[Request]:
    """At temperature 0, with everything that says where an output ends."""
    choose = random.Random(5)
    constraints: list[dict[str, Any]] = [{"regex": PATTERN}, {"regex": "[^\n]{5,60}"}, {"regex": "(not7!|yes#7 )+"}]
    constraints += [{"json": question.schema} for question in QUESTIONS[::3]]
    endings: list[dict[str, Any]] = [
        {},
        {"stop_token_ids": list(STOPS)},
        {"min_tokens": 20},
        {"min_tokens": 12, "stop_token_ids": [*STOPS, 1030]},
        {"stop": ["a", "Alice"]},
        {"stop": ["e", "#7"], "min_tokens": 7},
        {"stop": ["is"], "min_tokens": 3, "stop_token_ids": list(STOPS), "include_stop_str_in_output": True},
        {"ignore_eos": True, "min_tokens": 9},
    ]
    made = []
    for constraint, ending in itertools.product(constraints, endings):
        question = choose.choice(QUESTIONS)
        made.append(Request(question.text, {"temperature": 0, "max_tokens": 48, **ending}, constraint))
    return made


def frequent_requests() -> list[Request]:
    return [
        Request(" ".join(CHOICES), {"temperature": 1.0, "seed": seed, "stop_token_ids": [72]}, {"choice": CHOICES})
        for seed in range(MANY)
    ]
