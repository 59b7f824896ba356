"""The profile of the property tests, and what vLLM needs before it is imported."""

from hypothesis import settings

from generate_service.vllm_cpu import prepare_environment

prepare_environment()

# Every run tries the same examples, so that a failure is the change's own.
settings.register_profile("wire", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("wire")
