"""GPU tier: a slot-based continuous-batching engine on transformers models, sampling under grammar masks."""
