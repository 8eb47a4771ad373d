"""Turnstile as vLLM's structured output backend, in the place of outlines.

API process:  structured_outputs of a request --requests--> specification --compiler--> artifact in the store
              the request goes on as `turnstile:KEY`, or is refused with 400 before it reaches the engine
EngineCore:   `turnstile:KEY` --gpu_workers.vllm--> automaton --> rows of the bitmask
"""
