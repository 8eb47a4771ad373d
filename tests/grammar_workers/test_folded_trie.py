"""The folded tree of a vocabulary against the definition: one node for each sequence of classes."""

from __future__ import annotations

import collections
import random

import pytest

from grammar_workers import Vocabulary
from grammar_workers.pushdown.byte_classes import UNREAD


@pytest.mark.parametrize("seed", range(20))
def test_tokens_with_equal_classes_share_a_node(seed: int) -> None:
    rng = random.Random(seed)
    letters = bytes(range(97, 97 + rng.randint(2, 9)))
    tokens = [bytes(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 300))]
    vocabulary = Vocabulary([*tokens, *(bytes([byte]) for byte in range(256)), None], eos_token_ids=[])
    kinds = rng.randint(1, 6)
    classes = bytes(rng.choice([*range(kinds), UNREAD]) for _ in range(256))
    tree, spans, held = vocabulary.folded_tree(classes)
    wanted = collections.defaultdict(set)
    for token in range(vocabulary.size):
        sequence = bytes(classes[byte] for byte in vocabulary.token_bytes(token))
        if sequence and UNREAD not in sequence:
            wanted[sequence].add(token)
    found = {}
    sequence = b""
    for node, (byte, depth, end) in enumerate(tree.tolist()):
        sequence = sequence[:depth] + classes[byte : byte + 1]
        assert len(sequence) == depth + 1
        deeper = (below for below in range(node + 1, len(tree)) if tree[below, 1] <= depth)
        assert end == next(deeper, len(tree))
        assert sequence not in found
        found[sequence] = held[spans[node] : spans[node + 1]].tolist()
    assert len(held) == sum(map(len, wanted.values()))
    assert {sequence: {*ids} for sequence, ids in found.items() if ids} == wanted
