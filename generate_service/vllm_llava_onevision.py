"""LLaVA-OneVision, whose videos of different lengths end the engine in vLLM 0.32.

With as many frames each, vLLM makes one tensor of all videos of a step, and one row of embeddings a
video. With others it makes a tensor of one row for each, and fails on its own result: two strangers
whose videos meet in one step are enough.
"""

from typing import Any

import torch
from vllm.model_executor.models.llava_onevision import LlavaOnevisionForConditionalGeneration


class LlavaOnevision(LlavaOnevisionForConditionalGeneration):  # type: ignore[misc]
    def _process_video_pixels(self, inputs: Any) -> torch.Tensor | list[torch.Tensor]:
        """Return embeddings of shape ``(tokens, hidden_size)`` a video."""
        made: torch.Tensor | list[torch.Tensor] = super()._process_video_pixels(inputs)
        return made if isinstance(made, torch.Tensor) else [video.squeeze(0) for video in made]
