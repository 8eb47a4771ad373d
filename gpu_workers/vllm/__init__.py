"""Turnstile's masks inside vLLM's EngineCore. Imports no vLLM; the plugin (`deployments.vllm`) installs these classes.

reference:   text in a request that names a compiled grammar by its key
backend:     grammar key --> automaton with prefetched masks --> grammar of one request
grammar:     grammar states of one request --> masks in vLLM's token bitmask
loop_thread: event loop on a thread
timings:     durations of mask operations, in memory shared with vLLM's API process
"""
