"""A KV connector that moves nothing: it writes down what it is told, and answers with parameters.

Given to an engine by ``--kv-transfer-config`` with this module's path. The file that it writes to
is named by ``kv_connector_extra_config.record``; each line is one event as JSON.
"""

import json
import re
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)


class RecordingConnector(KVConnectorBase_V1):
    """Records on the scheduler's side; a worker has nothing to do."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = vllm_config.kv_transfer_config
        self._record = Path(config.get_from_extra_config("record", ""))

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        self._write("asked", request)
        return 0, False

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._write("finished", request)
        if not request.kv_transfer_params:
            return False, None
        answer = {
            "given": request.kv_transfer_params,
            "prompt_length": request.num_prompt_tokens,
            "nothing": None,
            "nested": [{"ids": [1, 2, 2**40], "share": 0.5, "text": "é"}],
        }
        return False, answer

    def _write(self, event: str, request: Any) -> None:
        line = {
            "event": event,
            # Without what vLLM adds to make it unique.
            "request_id": re.sub("-[0-9a-f]{8}$", "", request.request_id),
            "kv_transfer_params": request.kv_transfer_params,
            "session_id": request.session_id,
            "priority": request.priority,
            "cache_salt": request.cache_salt,
        }
        with self._record.open("a") as record:
            record.write(json.dumps(line) + "\n")

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None: ...

    def wait_for_save(self) -> None: ...
