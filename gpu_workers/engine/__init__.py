"""Continuous batching: which sequences run in the next pass, and what becomes of their tokens.

replica --> engine: requests in, streams out --messages--> step_loop: the thread that steps the batch
    schedule (`scheduler`) --> launch --> overlap host work (`overlap`) --> commit --> draw --> deliver
    sequence: one generation's state; output_text: its text; step_result: what a pass left behind for it
"""
