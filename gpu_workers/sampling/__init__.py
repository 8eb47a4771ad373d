"""From logits to a token: penalties, temperature, truncation, and randomness by counters.

logits --penalties--> --mask--> --sampler, truncation--> token, by `randomness`;  `logprobs` of it;  `beam_search`
"""
