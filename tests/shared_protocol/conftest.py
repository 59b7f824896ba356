"""The profile of the property tests."""

from hypothesis import settings

# Every run tries the same examples, so that a failure is the change's own.
settings.register_profile("wire", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("wire")
