"""Which rule of `item_rules` holds for the items of which of vLLM's processors."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from transformers.models.gemma4.image_processing_gemma4 import _SUPPORTED_SOFT_TOKENS
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape
from vllm import envs
from vllm.multimodal.processing import BaseProcessingInfo

from generate_service.item_rules import grids, nemotron, positions, sounds, tiles
from generate_service.item_rules.reader import Rule

_FRAMES_PER_SECOND: Final = 100
"""Of spectra, in the models here."""

Rules = Mapping[str, Rule]
"""By modality."""


def find_rules(info: BaseProcessingInfo) -> Rules:
    """Return the rules for what the processor of `info` makes; none for an unknown one.

    Processors are known by the exact name of their info's class: one that is derived may make
    other items.
    """
    build = _BUILDERS.get(type(info).__name__)
    rules = {} if build is None else build(info)
    if info.ctx.get_mm_config().video_pruning_rate:
        # Then the encoder decides which rows of a video are kept.
        return {modality: rule for modality, rule in rules.items() if modality != "video"}
    return rules


def _gemma3(info: Any) -> Rules:
    return {"image": tiles.counted_tiles(info.get_hf_config().mm_tokens_per_image)}


def _gemma3n(info: Any) -> Rules:
    config = info.get_hf_config()
    return {
        "image": tiles.one_size(config.vision_soft_tokens_per_image),
        "audio": sounds.padded_sound(config.audio_soft_tokens_per_image),
    }


def _gemma4(info: Any) -> Rules:
    vision = info.get_hf_config().vision_config
    places = (vision.pooling_kernel_size, vision.position_embedding_size)
    padded = {tokens * vision.pooling_kernel_size**2 for tokens in _SUPPORTED_SOFT_TOKENS}
    return {
        "image": positions.placed_patches(*places, padded=padded),
        "video": positions.placed_frames(*places),
        "audio": sounds.masked_spectrum(
            sounds.halved_twice, most=int(info.get_hf_processor().audio_seq_length)
        ),
    }


def _idefics3(info: Any) -> Rules:
    return {"image": tiles.masked_tiles(info.get_hf_processor().image_seq_len)}


def _lfm2(info: Any) -> Rules:
    return {"image": tiles.shaped_tiles(info.get_hf_config().downsample_factor)}


def _llava_onevision(info: Any) -> Rules:
    config = info.get_hf_config()

    def grid(height: int, width: int) -> tuple[int, int]:
        below, beside = get_anyres_image_grid_shape(
            (height, width), config.image_grid_pinpoints, config.vision_config.image_size
        )
        return int(below), int(beside)

    def embeds(height: int, width: int) -> int:
        return int(info.get_num_image_tokens(image_width=width, image_height=height))

    frame = info.get_num_video_tokens(image_width=1, image_height=1, num_frames=1) - 1
    return {
        "image": tiles.anyres_tiles(grid, embeds),
        "video": tiles.frames(frame, "pixel_values_videos", newline=1),
    }


def _phi3_v(_: Any) -> Rules:
    return {"image": tiles.newline_tiles}


def _qwen_vl(info: Any) -> Rules:
    merge = info.get_hf_config().vision_config.spatial_merge_size
    return {"image": grids.picture(merge), "video": grids.film(merge)}


def _qwen_omni(info: Any, shortening: sounds.Shortening) -> Rules:
    return {**_qwen_vl(info), "audio": _qwen_audio(shortening)}


def _qwen_audio(shortening: sounds.Shortening) -> Rule:
    spectrum = "input_audio_features"
    measured = sounds.measured_spectrum(shortening, spectrum, "audio_feature_lengths")
    return sounds.masked_frames(measured, spectrum, "feature_attention_mask")


def _mimo(info: Any) -> Rules:
    sound = info.get_hf_processor().mimo_processor

    def shortening(frames: int) -> int:
        """As `preprocess_audio` of the processor counts."""
        kernel, stride = sound.audio_kernel_size, sound.audio_stride_size
        convolved = (frames + 5 - 2 * kernel) // stride + 1
        pooled: int = math.ceil(convolved / sound.audio_avg_pooler)
        return -(-pooled // int(sound.audio_group_size))

    return {
        **_qwen_vl(info),
        "audio": sounds.counted_spectrum(shortening, "audio_features", "audio_token_lens"),
    }


def _qwen3_asr(_: Any) -> Rules:
    return {"audio": _qwen_audio(sounds.qwen3)}


def _moss_audio(info: Any) -> Rules:
    # Padded as the longest sound of the request that brought it to the processor's cache, which may
    # have been too long for the model, but not for vLLM's fetching of media.
    padded = max(
        8 * info.ctx.model_config.max_model_len,
        _FRAMES_PER_SECOND * envs.VLLM_MAX_AUDIO_DECODE_DURATION_S,
    )
    return {
        "audio": sounds.measured_spectrum(
            sounds.halved_thrice, "audio_data", "audio_data_seqlens", padded=padded
        )
    }


def _voxtral(info: Any) -> Rules:
    extractor = info.get_hf_processor().feature_extractor
    return {"audio": sounds.waveform(extractor.get_num_audio_tokens)}


def _voxtral_realtime(info: Any) -> Rules:
    audio = info.get_tokenizer().instruct.audio_encoder.audio_config
    return {"audio": sounds.waveform(audio.num_audio_tokens)}


def _nemotron(info: Any) -> Rules:
    processor, config = info.get_hf_processor(), info.get_hf_config()
    patch, downsampling = config.patch_size, round(1 / config.downsample_ratio)

    def film_embeds(indices: list[int], frame_ms: int, height: int, width: int) -> int:
        together = processor.video_temporal_patch_size
        unit = patch * downsampling
        frame = height // unit * (width // unit)
        replacement = processor.get_video_repl(
            tokens_per_frame=[frame] * math.ceil(len(indices) / together),
            frames_indices=indices,
            frame_duration_ms=frame_ms,
            tokenizer=processor.tokenizer,
            img_start_token_ids=processor._img_start_token_ids,
            img_end_token_ids=processor._img_end_token_ids,
            img_context_token_ids=processor._img_context_token_ids,
            video_temporal_patch_size=together,
        )
        return len(replacement.full)

    rules = {"video": nemotron.narrated_film(patch * downsampling, film_embeds)}
    if info.is_dynamic_tiler:
        rules["image"] = nemotron.sized_picture(patch, downsampling)
    if (sound := getattr(config, "sound_config", None)) is not None:
        rules["audio"] = nemotron.clips(partial(_subsampled, sound))
    return rules


def _subsampled(sound: Any, frames: int) -> int:
    """Parakeet's convolutions, as `_get_subsampling_output_length` in transformers counts them."""
    kernel: int = sound.subsampling_conv_kernel_size
    stride: int = sound.subsampling_conv_stride
    padding: int = (kernel - 1) // 2 * 2 - kernel
    length = frames
    for _ in range(int(math.log2(sound.subsampling_factor))):
        length = (length + padding) // stride + 1
    return length


def _deepseek_ocr2(info: Any) -> Rules:
    processor = info.get_hf_processor()

    def side(pixels: int) -> int:
        patch: int = processor.patch_size
        downsampling: int = processor.downsample_ratio
        return math.ceil(pixels // patch / downsampling)

    return {"image": tiles.cropped(side(processor.base_size) ** 2, side(processor.image_size) ** 2)}


def _transformers(info: Any) -> Rules:
    """vLLM's backend for models of transformers: pictures in the two ways that are known."""
    vision: Any = getattr(info.get_hf_config(), "vision_config", None)
    merge = getattr(vision, "spatial_merge_size", None)
    if merge is not None:
        return {"image": grids.picture(merge)}
    processor = info.get_hf_processor()
    if type(processor).__name__ in ("Idefics3Processor", "SmolVLMProcessor"):
        return {"image": tiles.nested_tiles(processor.image_seq_len)}
    return {}


def _whisper(_: Any) -> Rules:
    return {"audio": sounds.whole_window("input_features")}


_BUILDERS: Mapping[str, Callable[[Any], Rules]] = {
    "DeepseekOCR2ProcessingInfo": _deepseek_ocr2,
    "Gemma3ProcessingInfo": _gemma3,
    "Gemma3nProcessingInfo": _gemma3n,
    "Gemma4ProcessingInfo": _gemma4,
    "Idefics3ProcessingInfo": _idefics3,
    "SmolVLMProcessingInfo": _idefics3,
    "Lfm2VLProcessingInfo": _lfm2,
    "LlavaOnevisionProcessingInfo": _llava_onevision,
    "MultiModalProcessingInfo": _transformers,
    "NanoNemotronVLProcessingInfo": _nemotron,
    "Phi3VProcessingInfo": _phi3_v,
    "Qwen2VLProcessingInfo": _qwen_vl,
    "Qwen2_5_VLProcessingInfo": _qwen_vl,
    "Qwen3VLProcessingInfo": _qwen_vl,
    "Qwen3_5ProcessingInfo": _qwen_vl,
    "Qwen3_5MoeProcessingInfo": _qwen_vl,
    "MiMoV2OmniProcessingInfo": _mimo,
    "Qwen2_5OmniThinkerProcessingInfo": partial(_qwen_omni, shortening=sounds.qwen2_5),
    "Qwen3OmniMoeThinkerProcessingInfo": partial(_qwen_omni, shortening=sounds.qwen3),
    "Qwen3ASRProcessingInfo": _qwen3_asr,
    "MossAudioProcessingInfo": _moss_audio,
    "VoxtralProcessingInfo": _voxtral,
    "WhisperProcessingInfo": _whisper,
    "VoxtralRealtimeProcessingInfo": _voxtral_realtime,
}
