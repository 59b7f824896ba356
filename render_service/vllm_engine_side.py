"""Calls of vLLM's engine client that concern the engine's host; none of them crosses the wire."""

from typing import Any, NoReturn

from vllm.engine.protocol import EngineClient


class EngineSideCalls(EngineClient):
    """Answers 501 to what acts on an engine rather than asks it for tokens."""

    async def add_lora(self, *args: Any, **kwargs: Any) -> bool:
        _refuse("Loading adapters")

    async def start_profile(self, *args: Any, **kwargs: Any) -> None:
        _refuse("Profiling")

    async def stop_profile(self) -> None:
        _refuse("Profiling")

    async def reset_mm_cache(self) -> None:
        _refuse("Resetting caches")

    async def reset_encoder_cache(self) -> None:
        _refuse("Resetting caches")

    async def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        _refuse("Resetting caches")

    async def sleep(self, *args: Any, **kwargs: Any) -> None:
        _refuse("Sleeping")

    async def release_kv_cache_memory(self) -> None:
        _refuse("Sleeping")

    async def wake_up(self, *args: Any, **kwargs: Any) -> bool:
        _refuse("Sleeping")

    async def is_sleeping(self) -> bool:
        return False

    async def pause_generation(self, *args: Any, **kwargs: Any) -> None:
        _refuse("Pausing")

    async def resume_generation(self) -> None:
        _refuse("Pausing")

    async def is_paused(self) -> bool:
        return False


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(f"{what} is not offered by the render service")
