"""The pair beside `vllm serve` and beside stock vLLM's own pair: speed, and where the CPU goes."""
