"""Our masks inside vLLM's EngineCore; imports no vLLM, whose plugin (`deployments.vllm`) puts them there.

key --loader--> automaton with rows made ahead --backend--> grammar: one request's states --> rows of vLLM's bitmask
"""
