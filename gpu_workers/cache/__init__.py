"""Keys and values of attention: `kv_pool` holds the slots, `prefix_cache` finds prompts that begin alike."""
