"""From logits to a token: penalties, temperature, truncation, and randomness by counters.

sampler (the host):     logits --mask, penalties--> distribution --temperature, truncation, randomness--> token
device_step (captured): logits --mask-------------> distribution --the same functions-----------------> token
allowed_tokens: what a mask leaves of a row;  verification: drafts that were drawn at random
logprobs: what is told about a token;  beam_search: a likely output instead of a drawn one
"""
