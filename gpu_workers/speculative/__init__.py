"""Speculative decoding with a model of its own (Leviathan et al. 2023): several tokens in one pass of the target.

draft_model: a small model drafts for all rows together --> `sampling.verification` keeps the target's distribution
"""
