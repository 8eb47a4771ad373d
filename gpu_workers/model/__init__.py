"""The model with its KV cache, and tokenization of inputs and outputs.

loader:        loads and checks the model
quantization:  weights of 8 bits
model_runner:  forward passes: tokens --> hidden states
attention:     attention over the KV cache
kv_pool:       the KV cache
output_head:   hidden states --> logits
prompt:        text --> tokens
text:          tokens --> text
"""
