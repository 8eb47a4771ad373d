"""Speculative decoding with drafts by a model (Leviathan et al. 2023) or an EAGLE-3 head (Li et al. 2025).

logits_drafter: drafts for all rows together, under the mask, by what draft_model or eagle_drafter (eagle_head) computes
--> `sampling.verification` keeps the target's distribution
"""
