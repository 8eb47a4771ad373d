"""The model, and the texts that go in and come out.

loader, quantization --> model_runner --attention, kv_pool--> hidden states --output_head--> logits
prompt: text to tokens;  text: tokens to text
"""
