"""The GPU tier: token ids in, token ids out, over vLLM's engine."""
