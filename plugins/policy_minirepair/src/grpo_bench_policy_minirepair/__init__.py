"""Tiny policies pretrained for the mini repair tasks, and the script that makes them."""

from pathlib import Path

BASE = Path(__file__).parent / "base"
"""The Qwen3-MoE base checkpoint: a folder in Hugging Face form."""
BASE_QWEN35 = Path(__file__).parent / "base_qwen35"
"""The Qwen3.5-MoE base checkpoint, with the same tokenizer."""

__all__ = ["BASE", "BASE_QWEN35"]
