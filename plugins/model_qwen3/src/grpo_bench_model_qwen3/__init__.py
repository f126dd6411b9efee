"""The Qwen3 family (dense and MoE) in plain torch, with Hugging Face checkpoints.

Training, on any device of torch's: :func:`pack` lays out ragged rows, :func:`hidden_states` and
:func:`log_probabilities` compute on them.
Sampling, on the CPU: :class:`Cache` holds keys and values per slot, :func:`extend` runs new tokens of many slots at
once.
"""

from .cache import Cache, Chunk, extend
from .checkpoint import assign, load, load_tensors, read_config, save
from .config import Qwen3Config
from .independence import rows_are_independent
from .model import Qwen3, hf_views
from .packed import Packed, hidden_states, log_probabilities, pack, token_log_probabilities

__all__ = [
    "Cache", "Chunk", "Packed", "Qwen3", "Qwen3Config", "assign", "extend", "hf_views", "hidden_states", "load",
    "load_tensors", "log_probabilities", "pack", "read_config", "rows_are_independent", "save",
    "token_log_probabilities",
]
