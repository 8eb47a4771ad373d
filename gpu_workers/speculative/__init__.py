"""Speculative decoding (Leviathan et al. 2023): several tokens in one pass of the model.

drafts (from the text so far), draft_model (a small model) --> verification by the model's own distribution
"""
