# pyright: reportMissingImports=false
"""Three faults of vLLM 0.32.0 on CPU, and their mending. All does nothing where vLLM does not run on CPU.

Two make a change of weights silently wrong. The CPU keeps packed copies of some weights. Packing is done once more
after a change, but for two of them:

- Experts are packed only while their method has no kernel yet. After a change the unpacked weights would be copied
  into the packed storage. ``before_update`` drops the kernel, so that the experts are packed and it is built again.
- A tied ``lm_head`` is handed no weight of its own, so nobody packs it again, and it goes on with the embedding it was
  packed from. ``after_update`` packs every ``lm_head`` anew.

On CUDA the kernel must stay, since graphs hold its addresses.

The third ends the engine: where a prompt is spread over steps, vLLM takes back the random numbers that it drew for the
steps before the last, through the generator's offset, which CPU generators do not have.
``let_generators_be_rewound`` gives them one that moves nothing; such a request just goes on in its random stream.
"""

from __future__ import annotations

from typing import Any


def before_update(model: Any) -> None:
    """Call before the layers are prepared for new weights."""
    if not _on_cpu():
        return
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def after_update(model: Any) -> None:
    """Call when all layers have their new weights."""
    if not _on_cpu():
        return
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def let_generators_be_rewound() -> None:
    """Call in an engine process before it gets a request."""
    if not _on_cpu():
        return
    import torch

    class Generator(torch.Generator):
        """One that can be asked to go back, and does not."""

        def get_offset(self) -> int:
            return 0

        def set_offset(self, offset: int) -> torch.Generator:
            return self

    torch.Generator = Generator


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
