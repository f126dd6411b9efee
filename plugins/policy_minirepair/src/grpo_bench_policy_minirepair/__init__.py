"""A tiny Qwen3-MoE policy pretrained for the mini repair tasks, and the script that makes it."""

from pathlib import Path

BASE = Path(__file__).parent / "base"
"""The base checkpoint: a folder in Hugging Face form."""

__all__ = ["BASE"]
