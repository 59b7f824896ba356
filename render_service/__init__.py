"""The CPU tier: the OpenAI-compatible API over a remote engine; no weights, no GPU."""
