"""The native engine: continuous batching of many generations on one thread, with an asyncio interface.

engine:       asyncio side; accepts requests and streams their outputs
messages:     messages from the asyncio side to the engine thread
step_loop:    the engine thread: schedule --> launch --> overlap --> commit --> sample, once per step
scheduler:    assigns slots of the KV cache, and selects the tokens of a step
prefix_cache: reuses the KV cache of an earlier prompt that begins with the same tokens
overlap:      runs the forward pass while the host works
"""
