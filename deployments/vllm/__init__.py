"""Turnstile as vLLM's structured outputs backend (in place of outlines), and vLLM as the engine of a model replica.

API process:  structured_outputs of a request --requests--> specification --compiler--> artifact in the store
              the request continues as `turnstile:KEY`, or is rejected with 400 before it reaches the engine
EngineCore:   `turnstile:KEY` --gpu_workers.vllm--> automaton --> masks in the token bitmask

An *artifact* is a compiled grammar (constraint). `turnstile:KEY` is the *reference* to an artifact, where KEY is a hash
of the specification and the options. The modules `plugin` and `installation` change vLLM. The modules `replica` and
`engine` run vLLM inside Turnstile's own server.
"""
