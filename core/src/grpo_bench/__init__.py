"""How long does a GRPO post-training stack take to reach a target pass@k?"""

__version__ = "0.1.0"
