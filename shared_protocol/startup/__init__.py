"""What both services do before vLLM is imported; needs nothing but the standard library."""
