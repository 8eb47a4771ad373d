"""Speculative decoding with drafts of a second model (Leviathan et al. 2023) or of an EAGLE-3 head (Li et al. 2025).

A *draft* is a proposed next token, which the target model verifies.

logits_drafter:   drafts from logits, under the mask, for all sequences in one batch
  draft_model:    logits of a second, smaller model
  eagle_drafter:  logits of an EAGLE-3 head (eagle_head)

`sampling.verification` verifies randomly sampled drafts and keeps the distribution of the target model.
"""
