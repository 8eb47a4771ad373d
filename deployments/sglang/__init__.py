"""Turnstile as a grammar backend of SGLang. The option `--grammar-backend turnstile` of SGLang selects it.

Scheduler process:  constraint of a request --admission--> artifact in the store --loader--> automaton
                    --gpu_workers.vllm--> states of one request -> masks in SGLang's token bitmask

An artifact is a compiled grammar (constraint). The environment variables of the vLLM plugin (module
`deployments.vllm.settings`) select the store of artifacts, and the compiler: own processes or a Turnstile server.
SGLang waits for a grammar on a thread. The request joins the batch when its grammar is ready. If several scheduler
processes run the same batches (tensor and pipeline parallelism), only one of them compiles (module `ranks`).
"""
