"""Inference on GPUs or CPUs: model replicas that sample only the tokens that a request's grammar allows.

A *grammar* is the compiled constraint of a request, such as a JSON Schema. The native engine (`engine`) runs a
transformers model with continuous batching. Each running sequence owns one slot of the KV cache. Each folder imports
only folders above it in this list:

model:        loads the model; KV cache, attention, forward pass, tokenization
sampling:     logits --> token, under a token bitmask (one bit per token of the vocabulary)
guided:       grammar key (hash that names a grammar) --> automaton --> masks of a sequence
sequence:     state of one generation, with its drafts (proposed tokens that a forward pass verifies)
speculative:  drafts by a second model or an EAGLE-3 head
device_step:  decode steps that mask and sample on the device
engine:       the scheduler, and the thread that runs the steps of the batch
vllm:         the same masks inside vLLM's EngineCore

`replica` is the Ray Serve deployment. `request` and `output` define its input and output, and `config` its settings.
"""
