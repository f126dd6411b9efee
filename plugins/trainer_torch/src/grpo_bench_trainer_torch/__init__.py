"""GRPO updates in plain torch, data parallel over local processes."""
