"""What the backward pass needs of the forward one, estimated: every matrix keeps its input and its output.

Sequences of ``tokens`` are cut over tensor- and context-parallel ranks; a token goes through some of the experts, and
those of each rank get their share. A stage starts further sequences before the first one comes back.
"""

from __future__ import annotations

from collections import defaultdict

from .config import MegatronTrainerConfig
from .model import Shape

_ITEM = {"float32": 4, "bfloat16": 2}
_LOGITS_FLOAT32 = 2
"""Copies of the logits in float32: scaled, and their exponentials."""


def activations_of(config: MegatronTrainerConfig, shape: Shape, stage: int, tokens: int) -> int:
    """Bytes that a rank of one pipeline stage keeps at its fullest."""
    stages, pieces = config.pipeline_parallel, config.virtual_pipeline
    local, item = tokens / (config.tensor_parallel * config.context_parallel), _ITEM[config.precision]
    layers = shape.layers // (stages * pieces)
    kept, again = _of_layer(config, shape)
    waiting = stages - stage if pieces == 1 else (pieces - 1) * stages + 2 * (stages - stage - 1) + 1
    total = local * item * (waiting * layers * kept + again)
    if stage == stages - 1:
        judged = tokens / config.context_parallel * shape.vocabulary / config.tensor_parallel
        total += judged * (item + _LOGITS_FLOAT32 * _ITEM["float32"])
    return round(total)


def _of_layer(config: MegatronTrainerConfig, shape: Shape) -> tuple[float, float]:
    """Numbers that a layer keeps for each token, the widest layer's, and those that are computed again, one layer's at
    a time."""
    dense, moe = defaultdict(float), defaultdict(float)
    for weight in shape.weights:
        if weight.layer is not None:
            share = shape.active / shape.experts if weight.expert and shape.experts else 1.0
            (moe if weight.moe else dense)[weight.layer] += weight.width * share
    widths = [(dense[layer], moe[layer]) for layer in {*dense, *moe}]
    outside, inside = max((value for value, _ in widths), default=0.0), max((value for _, value in widths), default=0.0)
    if config.recompute == "full":
        unit = config.recompute_layers
        return shape.hidden / unit, (outside + inside) * unit
    if config.recompute == "selective" and "moe" in config.recompute_modules:
        return outside + shape.hidden, inside
    return outside + inside, 0.0
