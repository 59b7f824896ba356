"""The wire between the render and the generate service.

Imports neither torch, vLLM nor FastAPI, so that a router, a test or another language's
generator can use it alone.
"""
