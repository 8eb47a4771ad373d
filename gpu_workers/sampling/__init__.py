"""Sampling: from logits to a token, under a mask.

sampler (on the host):            logits --mask, penalties--> temperature, top-k, top-p, min-p --random number--> token
device_step (captured in graphs): logits --mask-------------> the same functions ------------------------------> token

allowed_tokens:    the tokens that a mask allows
device_rows:       masks in device memory
masked_scores:     mask and temperature in one operation on the device
distribution:      weights of tokens, and the choice of a token by a random number
truncation:        top-k, top-p and min-p
penalties:         logit bias, repetition, presence and frequency penalties
randomness:        random numbers that depend only on seed and position
verification:      randomly sampled drafts, accepted or replaced
logprobs:          log-probabilities and diagnostics of a token
beam_search:       a likely output instead of a sampled one
particle_weights:  weights of sequential Monte Carlo
"""
