"""What a request must keep to for this model: nothing unchecked passes to the engine."""

from collections.abc import Collection
from dataclasses import dataclass

from generate_service.item_admission import PROMPT_EMBEDS_MODALITY, MediaLimits, check_media
from shared_protocol.errors import InvalidRequest, UnknownModel
from shared_protocol.request import Adapter, Features, GenerateRequest, PromptEmbeds


@dataclass(frozen=True)
class ModelLimits:
    """The facts of the served model that a request is measured by.

    Attributes:
        media: what is known of the media that the model takes.
        generates: whether the model is served to generate, rather than to pool.
        encoder_decoder: whether the items of a prompt go to an encoder, and its text to a decoder.
        adapters: the LoRA adapters that are loaded.
    """

    served_names: Collection[str]
    vocab_size: int
    hidden_size: int
    max_model_len: int
    dtype: str
    enable_prompt_embeds: bool
    media: MediaLimits
    generates: bool
    encoder_decoder: bool
    adapters: Collection[Adapter]


def admit(request: GenerateRequest, limits: ModelLimits) -> GenerateRequest:
    """Return `request` if the served model can take it.

    Raises:
        UnknownModel: if it asks for another model.
        InvalidRequest: with ``param`` naming what does not fit.
    """
    _check_model(request, limits)
    if (request.pooling_params is None) != limits.generates:
        wanted = "sampling_params" if limits.generates else "pooling_params"
        raise InvalidRequest(
            f"This model is served for requests with {wanted}", param="pooling_params"
        )
    _check_prompt(request.token_ids, limits)
    _check_encoder_prompt(request.encoder_token_ids, limits)
    if request.features is not None:
        _check_features(request.features, limits)
    if request.prompt_embeds is not None:
        _check_prompt_embeds(request.prompt_embeds, limits)
    return request


def _check_model(request: GenerateRequest, limits: ModelLimits) -> None:
    if request.lora is not None:
        # The engine dies of an adapter that it cannot load: only those that it has are let in.
        if request.lora not in limits.adapters:
            raise UnknownModel(f"The adapter `{request.lora.name}` is not loaded.", param="lora")
    elif request.model and request.model not in limits.served_names:
        raise UnknownModel(f"The model `{request.model}` does not exist.", param="model")


def _check_prompt(token_ids: list[int], limits: ModelLimits) -> None:
    # A model that generates needs room for at least one token.
    longest = limits.max_model_len - limits.generates
    if len(token_ids) > longest:
        raise InvalidRequest(
            f"The prompt has {len(token_ids)} tokens, at most {longest} are allowed",
            param="token_ids",
        )
    _check_vocabulary(token_ids, limits, "token_ids")


def _check_encoder_prompt(token_ids: list[int] | None, limits: ModelLimits) -> None:
    # Without an item for its encoder, or with one that has none, the engine's step fails.
    if (token_ids is not None) != limits.encoder_decoder:
        wanted = "must be given to" if limits.encoder_decoder else "is only for"
        raise InvalidRequest(
            f"encoder_token_ids {wanted} an encoder-decoder", param="encoder_token_ids"
        )
    if token_ids is not None:
        _check_vocabulary(token_ids, limits, "encoder_token_ids")


def _check_vocabulary(token_ids: list[int], limits: ModelLimits, param: str) -> None:
    if max(token_ids) >= limits.vocab_size:
        index = next(i for i, token in enumerate(token_ids) if token >= limits.vocab_size)
        raise InvalidRequest(
            f"{param}[{index}] is {token_ids[index]}, the model's vocabulary ends at "
            f"{limits.vocab_size - 1}",
            param=f"{param}[{index}]",
        )


def _check_features(features: Features, limits: ModelLimits) -> None:
    check_media(features, limits.media, hidden_size=limits.hidden_size)
    if PROMPT_EMBEDS_MODALITY in features.mm_hashes:
        _check_embeds_items(features, limits)


def _check_embeds_items(features: Features, limits: ModelLimits) -> None:
    items = (features.kwargs_data or {}).get(PROMPT_EMBEDS_MODALITY, [])
    placeholders = features.mm_placeholders[PROMPT_EMBEDS_MODALITY]
    for index, (item, placeholder) in enumerate(zip(items, placeholders, strict=False)):
        param = f"features.kwargs_data.{PROMPT_EMBEDS_MODALITY}[{index}]"
        tensors = {} if item is None else dict(item.tensors())
        if item is not None and tensors.keys() != {"embedding"}:
            raise InvalidRequest(f"{param} must hold the one tensor 'embedding'", param=param)
        for tensor in tensors.values():
            _check_embedding(tensor.dtype, tensor.shape, limits, param)
            if tensor.shape[0] != placeholder.num_embeds:
                raise InvalidRequest(
                    f"{param} has {tensor.shape[0]} rows, its placeholder embeds "
                    f"{placeholder.num_embeds}",
                    param=param,
                )


def _check_prompt_embeds(embeds: PromptEmbeds, limits: ModelLimits) -> None:
    for index, tensor in enumerate(embeds.tensors):
        _check_embedding(
            tensor.dtype, tensor.shape, limits, param=f"prompt_embeds.tensors[{index}]"
        )


def _check_embedding(dtype: str, shape: tuple[int, ...], limits: ModelLimits, param: str) -> None:
    if not limits.enable_prompt_embeds:
        raise InvalidRequest(
            "Supplied embeddings are not enabled: start the service with --enable-prompt-embeds",
            param=param,
        )
    if len(shape) != 2 or shape[1] != limits.hidden_size or dtype != limits.dtype:
        raise InvalidRequest(
            f"{param} is {dtype}{list(shape)}, it must be {limits.dtype}[length, "
            f"{limits.hidden_size}]",
            param=param,
        )
