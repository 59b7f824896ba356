"""What an engine's encoder really made, told by its worker.

For `--worker-extension-cls`: the worker class inherits from this one, and its methods can be called
through vLLM's endpoint `/collective_rpc`.
"""

from typing import Any

WORKER_EXTENSION = f"{__name__}.EncoderRows"


class EncoderRows:
    model_runner: Any
    _rows: dict[str, int]

    def record_encoder_rows(self) -> None:
        """From now on remember how many rows the encoder made of which item."""
        self._rows = {}
        runner = self.model_runner
        cache = runner._cache_encoder_output

        def recorded(mm_hash: str, output: Any, *args: Any) -> None:
            self._rows[mm_hash] = output.shape[0]
            cache(mm_hash, output, *args)

        runner._cache_encoder_output = recorded

    def encoder_rows(self) -> dict[str, int]:
        """Rows by hash of the item."""
        return self._rows
