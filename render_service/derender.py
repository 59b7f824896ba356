"""From deltas to text: vLLM's output processor fed with what a replica sends."""

from vllm.tokenizers import TokenizerLike
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats

from render_service.vllm_delta import decode_delta
from shared_protocol.answer import TokenDelta


class Derenderer:
    """Detokenizes and finds stop strings for all the requests of this process.

    Text, stop strings, decoded logprobs and the order of events are vLLM's, because its own
    classes make them.
    """

    def __init__(self, tokenizer: TokenizerLike | None, *, stream_interval: int) -> None:
        """
        Args:
            stream_interval: how many tokens are gathered before a streamed request shows them.
        """
        self._processor = OutputProcessor(
            tokenizer, log_stats=True, stream_interval=stream_interval
        )

    def add(
        self,
        request: EngineCoreRequest,
        prompt_text: str | None,
        outputs: RequestOutputCollector,
        *,
        parent: ParentRequest | None = None,
        index: int = 0,
    ) -> None:
        """Expect deltas of `request`, choice `index` of `parent`; `outputs` gets what they give."""
        self._processor.add_request(request, prompt_text, parent, index, outputs)

    def feed(self, request_id: str, delta: TokenDelta) -> bool:
        """Process one delta; return whether the engine or a stop string has ended the request."""
        processed = self._processor.process_outputs(
            [decode_delta(delta, request_id=request_id)],
            delta.timestamp,
            IterationStats(),
            delta.weight_version,
        )
        return delta.finished or bool(processed.reqs_to_abort)

    def drop(self, request_id: str) -> None:
        """Forget a request, or all choices of one, that will get no more deltas."""
        self._processor.abort_requests([request_id], internal=True)
