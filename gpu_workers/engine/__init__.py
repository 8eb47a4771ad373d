"""Continuous batching: which sequences run in the next pass, and what becomes of their tokens.

replica --> engine: requests in, streams out --messages--> step_loop: the thread that steps the batch
    schedule (`scheduler`) --> launch --> overlap host work (`overlap`) --> commit --> draw --> deliver
scheduler: who has a slot, and which prompts begin alike (`prefix_cache`)
"""
