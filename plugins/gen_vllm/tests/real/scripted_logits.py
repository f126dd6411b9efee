"""A logits processor for vLLM's server: a request that brings ``script``, token ids as JSON, samples just these."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false

from __future__ import annotations

import json
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Scripted(AdapterLogitsProcessor):
    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        script = (params.extra_args or {}).get("script")
        return _Follow(json.loads(script)) if script else None


class _Follow:
    def __init__(self, script: list[int]) -> None:
        self._script = script

    def __call__(self, output_ids: list[int], logits: Any) -> Any:
        wanted = self._script[len(output_ids)]
        logits[:] = float("-inf")
        logits[wanted] = 0.0
        return logits
