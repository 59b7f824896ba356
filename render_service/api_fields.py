"""Every field of vLLM's requests and parameters, and what the pair does with it.

The tables are closed, and a test compares them with vLLM's classes: a field that a new vLLM brings
has to be placed here. They name fields only, so that the documentation is written without
importing vLLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias


class Place(StrEnum):
    ENGINE = "carried to the engine"
    RENDER = "handled on render"
    REFUSED = "refused"


@dataclass(frozen=True)
class Effect:
    place: Place
    about: str


Fields: TypeAlias = Mapping[Effect, str]
"""Names of fields by what the pair does with them."""


@dataclass(frozen=True)
class Request:
    """The body that `endpoints` take: the fields of a class of vLLM's, or of a union of them."""

    endpoints: str
    fields: Fields


_SAMPLING: Final = Effect(Place.ENGINE, "a sampling parameter")
_STRUCTURE: Final = Effect(Place.ENGINE, "a sampling parameter: structured outputs")
_POOLING: Final = Effect(Place.ENGINE, "a pooling parameter")
_BESIDE: Final = Effect(Place.ENGINE, "for the scheduler, the caches, the connectors")
_WATERMARK: Final = Effect(
    Place.ENGINE, "a sampling parameter, without effect: no engine is given a `--watermark-config`"
)

_MODEL: Final = Effect(Place.RENDER, "has to be served here; may name an adapter")
_PROMPT: Final = Effect(Place.RENDER, "makes the prompt")
_TOOLS: Final = Effect(
    Place.RENDER,
    "in the prompt and for parsing the answer; calls that have to be made become structured "
    "outputs",
)
_REASONING: Final = Effect(
    Place.RENDER,
    "in the prompt and for parsing the answer; a budget becomes a sampling parameter",
)
_EFFORT: Final = Effect(Place.RENDER, "in the prompt and for parsing the answer")
_TEXT: Final = Effect(Place.RENDER, "makes the text of the answer")
_ANSWER: Final = Effect(Place.RENDER, "says what is in the answer and how it comes")
_CHOICES: Final = Effect(Place.RENDER, "each choice is a request of its own to an engine")
_BEAM: Final = Effect(Place.RENDER, "a beam search is made here, each step of it on engines")
_MEMORY: Final = Effect(Place.RENDER, "answers are kept in the memory of one process, as in vLLM")
_FORM: Final = Effect(Place.RENDER, "says what a `/render` endpoint shows; no effect elsewhere")
_ECHOED: Final = Effect(Place.RENDER, "repeated in the answer and not used, as in vLLM")
_UNUSED: Final = Effect(Place.RENDER, "not used, as in vLLM")
_OWN: Final = Effect(Place.RENDER, "vLLM's own; each of the two services sets it")

_AS_VLLM: Final = Effect(Place.REFUSED, "400 unless it has its default, as in vLLM")
_PLUGIN: Final = Effect(Place.REFUSED, "for IO processor plug-ins, which run beside an engine")

_POOLED: Final = "truncate_prompt_tokens truncation_side padding mm_processor_kwargs"
_CONVERSATION: Final = """
    messages add_generation_prompt continue_final_message chat_template chat_template_kwargs
    media_io_kwargs add_special_tokens
"""
_ENCODING: Final = "encoding_format embed_dtype endianness"

_SPEECH: Final[Fields] = {
    _MODEL: "model",
    _PROMPT: "file language to_language hotwords prompt",
    _SAMPLING: """
        temperature top_p top_k min_p seed frequency_penalty presence_penalty repetition_penalty
        max_completion_tokens vllm_xargs
    """,
    _WATERMARK: "watermarking",
    _BEAM: "use_beam_search n length_penalty include_stop_str_in_output",
}
_SPEECH_ANSWER: Final = "response_format stream stream_include_usage stream_continuous_usage_stats"

REQUESTS: Final[Mapping[str, Request]] = {
    "ChatCompletionRequest": Request(
        "POST /v1/chat/completions POST /v1/chat/completions/render",
        {
            _MODEL: "model",
            _PROMPT: """
                messages documents reasoning_effort add_generation_prompt continue_final_message
                add_special_tokens chat_template chat_template_kwargs media_io_kwargs
                mm_processor_kwargs truncate_prompt_tokens truncation_side
            """,
            _TOOLS: "tools tool_choice parallel_tool_calls",
            _SAMPLING: """
                temperature top_p top_k min_p seed frequency_penalty presence_penalty
                repetition_penalty logit_bias allowed_token_ids bad_words max_tokens
                max_completion_tokens min_tokens stop_token_ids ignore_eos logprobs top_logprobs
                logprob_token_ids prompt_logprobs thinking_token_budget repetition_detection
                routed_experts_prompt_start vllm_xargs
            """,
            _STRUCTURE: "response_format structured_outputs",
            _BESIDE: """
                request_id priority session_id cache_salt kv_transfer_params ec_transfer_params
            """,
            _WATERMARK: "watermarking",
            _CHOICES: "n",
            _BEAM: "use_beam_search length_penalty",
            _TEXT: """
                stop include_stop_str_in_output skip_special_tokens spaces_between_special_tokens
            """,
            _ANSWER: """
                stream stream_options stream_interval echo include_reasoning return_token_ids
                return_tokens_as_token_ids return_prompt_text
            """,
            _FORM: "return_token_offsets mm_payload return_mm_kwargs",
            _UNUSED: "user",
        },
    ),
    "BatchChatCompletionRequest": Request(
        "POST /v1/chat/completions/batch",
        {
            _MODEL: "model",
            _PROMPT: """
                messages add_generation_prompt continue_final_message chat_template
                chat_template_kwargs media_io_kwargs mm_processor_kwargs
            """,
            _SAMPLING: """
                temperature top_p top_k min_p seed frequency_penalty presence_penalty
                repetition_penalty logit_bias max_tokens max_completion_tokens logprobs
                top_logprobs logprob_token_ids
            """,
            _STRUCTURE: "response_format structured_outputs",
            _BESIDE: "request_id priority cache_salt",
            _WATERMARK: "watermarking",
            _TEXT: "stop include_stop_str_in_output",
            _ANSWER: "echo include_reasoning return_token_ids return_tokens_as_token_ids",
            _AS_VLLM: "n use_beam_search tool_choice",
            _UNUSED: "user best_of early_stopping length_penalty guided_decoding_backend",
        },
    ),
    "CompletionRequest": Request(
        "POST /v1/completions POST /v1/completions/render",
        {
            _MODEL: "model",
            _PROMPT: """
                prompt prompt_embeds suffix add_special_tokens truncate_prompt_tokens
                truncation_side
            """,
            _SAMPLING: """
                temperature top_p top_k min_p seed frequency_penalty presence_penalty
                repetition_penalty logit_bias allowed_token_ids bad_words max_tokens min_tokens
                stop_token_ids ignore_eos logprobs logprob_token_ids prompt_logprobs
                thinking_token_budget repetition_detection routed_experts_prompt_start vllm_xargs
            """,
            _STRUCTURE: "response_format structured_outputs",
            _BESIDE: """
                request_id priority session_id cache_salt kv_transfer_params ec_transfer_params
            """,
            _WATERMARK: "watermarking",
            _CHOICES: "n",
            _BEAM: "use_beam_search length_penalty",
            _TEXT: """
                stop include_stop_str_in_output skip_special_tokens spaces_between_special_tokens
            """,
            _ANSWER: """
                stream stream_options stream_interval echo return_token_ids
                return_tokens_as_token_ids
            """,
            _FORM: "return_token_offsets mm_payload return_mm_kwargs",
            _UNUSED: "user",
        },
    ),
    "ResponsesRequest": Request(
        "POST /v1/responses POST /v1/responses/render",
        {
            _MODEL: "model",
            _PROMPT: """
                input instructions previous_input_messages truncation chat_template_kwargs
                media_io_kwargs mm_processor_kwargs
            """,
            _TOOLS: "tools tool_choice parallel_tool_calls",
            _EFFORT: "reasoning",
            _SAMPLING: """
                temperature top_p top_k min_p seed frequency_penalty presence_penalty
                repetition_penalty logit_bias max_output_tokens stop_token_ids ignore_eos
                top_logprobs vllm_xargs
            """,
            _STRUCTURE: "text structured_outputs",
            _BESIDE: """
                request_id priority session_id cache_salt kv_transfer_params ec_transfer_params
            """,
            _WATERMARK: "watermarking",
            _TEXT: "stop include_stop_str_in_output skip_special_tokens",
            _ANSWER: "stream include include_reasoning enable_response_messages",
            _MEMORY: "store background previous_response_id",
            _FORM: "mm_payload return_mm_kwargs",
            _AS_VLLM: "prompt",
            _ECHOED: "metadata service_tier max_tool_calls user",
            _UNUSED: "prompt_cache_key",
        },
    ),
    "AnthropicMessagesRequest": Request(
        "POST /v1/messages POST /v1/messages/render",
        {
            _MODEL: "model",
            _PROMPT: "messages system chat_template_kwargs",
            _TOOLS: "tools tool_choice",
            _REASONING: "thinking",
            _SAMPLING: "temperature top_p top_k max_tokens vllm_xargs",
            _STRUCTURE: "output_config",
            _BESIDE: "cache_salt kv_transfer_params ec_transfer_params",
            _WATERMARK: "watermarking",
            _TEXT: "stop_sequences",
            _ANSWER: "stream",
            _FORM: "mm_payload return_mm_kwargs",
            _UNUSED: "metadata",
        },
    ),
    "AnthropicCountTokensRequest": Request(
        "POST /v1/messages/count_tokens",
        {
            _MODEL: "model",
            _PROMPT: """
                messages system tools tool_choice thinking output_config chat_template_kwargs
            """,
        },
    ),
    "CohereChatV2Request": Request(
        "POST /cohere/v2/chat",
        {
            _MODEL: "model",
            _PROMPT: "messages documents citation_options safety_mode chat_template_kwargs",
            _TOOLS: "tools strict_tools tool_choice",
            _REASONING: "thinking",
            _SAMPLING: """
                temperature k p seed frequency_penalty presence_penalty max_tokens logprobs
            """,
            _STRUCTURE: "response_format",
            _BESIDE: "priority kv_transfer_params",
            _WATERMARK: "watermarking",
            _TEXT: "stop_sequences",
            _ANSWER: "stream",
        },
    ),
    "DerenderChatRequest": Request(
        "POST /v1/chat/completions/derender",
        {
            _MODEL: "model",
            _TEXT: """
                generate_response generate_chunk stream_state prompt_tokens prompt_token_ids
                chat_request
            """,
            _ANSWER: "stream",
        },
    ),
    "DerenderCompletionRequest": Request(
        "POST /v1/completions/derender",
        {
            _MODEL: "model",
            _TEXT: """
                generate_responses generate_chunk stream_state prompt_tokens prompt_token_ids
                completion_request
            """,
            _ANSWER: "stream",
        },
    ),
    "TokenizeRequest": Request(
        "POST /tokenize",
        {
            _MODEL: "model",
            _PROMPT: f"{_CONVERSATION} prompt tools mm_processor_kwargs",
            _ANSWER: "return_token_strs",
        },
    ),
    "DetokenizeRequest": Request("POST /detokenize", {_MODEL: "model", _TEXT: "tokens"}),
    "GenerativeScoringRequest": Request(
        "POST /generative_scoring",
        {
            _MODEL: "model",
            _PROMPT: "query items item_first add_special_tokens",
            _SAMPLING: "label_token_ids",
            _BESIDE: "request_id priority cache_salt",
            _ANSWER: "apply_softmax",
        },
    ),
    "StructuredDecisionRequest": Request(
        "POST /v1/systemone",
        {
            _MODEL: "model",
            _PROMPT: "state questions instructions images audio videos chat_template_kwargs",
            _BESIDE: "request_id priority cache_salt",
        },
    ),
    "TranscriptionRequest": Request(
        "POST /v1/audio/transcriptions",
        {**_SPEECH, _ANSWER: f"{_SPEECH_ANSWER} timestamp_granularities"},
    ),
    "TranslationRequest": Request(
        "POST /v1/audio/translations", {**_SPEECH, _ANSWER: _SPEECH_ANSWER}
    ),
    "PoolingRequest": Request(
        "POST /pooling",
        {
            _MODEL: "model",
            _PROMPT: f"input {_CONVERSATION} {_POOLED}",
            _POOLING: "task use_activation",
            _BESIDE: "request_id priority cache_salt",
            _ANSWER: _ENCODING,
            _AS_VLLM: "dimensions",
            _PLUGIN: "data",
            _UNUSED: "user",
        },
    ),
    "EmbeddingRequest": Request(
        "POST /v1/embeddings",
        {
            _MODEL: "model",
            _PROMPT: f"input {_CONVERSATION} {_POOLED}",
            _POOLING: "dimensions use_activation",
            _BESIDE: "request_id priority cache_salt",
            _ANSWER: _ENCODING,
            _UNUSED: "user",
        },
    ),
    "CohereEmbedRequest": Request(
        "POST /v2/embed",
        {
            _MODEL: "model",
            _PROMPT: "input_type texts images inputs truncate max_tokens",
            _POOLING: "output_dimension",
            _BESIDE: "priority",
            _ANSWER: "embedding_types",
        },
    ),
    "ClassificationRequest": Request(
        "POST /classify",
        {
            _MODEL: "model",
            _PROMPT: f"input {_CONVERSATION} {_POOLED}",
            _POOLING: "use_activation",
            _BESIDE: "request_id priority cache_salt",
            _UNUSED: "user",
        },
    ),
    "ScoreRequest": Request(
        "POST /score POST /v1/score",
        {
            _MODEL: "model",
            _PROMPT: f"""
                queries documents items data_1 data_2 text_1 text_2 instruction
                chat_template_kwargs max_tokens_per_query max_tokens_per_doc {_POOLED}
            """,
            _POOLING: "use_activation",
            _BESIDE: "request_id priority cache_salt",
            _UNUSED: "user",
        },
    ),
    "RerankRequest": Request(
        "POST /rerank POST /v1/rerank POST /v2/rerank",
        {
            _MODEL: "model",
            _PROMPT: f"""
                query documents instruction chat_template_kwargs max_tokens_per_query
                max_tokens_per_doc {_POOLED}
            """,
            _POOLING: "use_activation",
            _BESIDE: "request_id priority cache_salt",
            _ANSWER: "top_n",
            _UNUSED: "user",
        },
    ),
}
"""What each request's fields are for; a union has the name that vLLM gives it."""

SAMPLING_PARAMS: Final[Fields] = {
    _SAMPLING: """
        n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed
        stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs
        prompt_logprob_token_ids prompt_logprob_start logprob_token_ids structured_outputs
        logit_bias allowed_token_ids bad_words extra_args skip_reading_prefix_cache
        thinking_token_budget repetition_detection routed_experts_prompt_start
        trace_decode_token_ids
    """,
    _WATERMARK: "watermarking",
    _TEXT: "stop include_stop_str_in_output skip_special_tokens spaces_between_special_tokens",
    _ANSWER: "stream_interval",
    _OWN: """
        detokenize flat_logprobs output_kind output_text_buffer_length skip_clone
        _eos_token_id _all_stop_token_ids _bad_words_token_ids _watermarking_skipped
    """,
}

POOLING_PARAMS: Final[Fields] = {
    _POOLING: """
        task dimensions use_activation step_tag_id returned_token_ids requires_token_ids
        skip_reading_prefix_cache late_interaction_params extra_kwargs
    """,
    _OWN: "output_kind",
}
