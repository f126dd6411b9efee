"""A program for the Megatron environment: Qwen3.5-MoE as transformers computes it.

    python qwen35_by_transformers.py FOLDER ASKED VALUES

Writes the log-probabilities, float32, of the rows in ASKED (.npz: ids [n], offsets, temperature) under the policy in
FOLDER to VALUES (.npy). Where FOLDER is not there, it first makes a tiny random policy.
"""

# pyright: reportMissingImports=false

import os
import sys

import numpy as np
import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

VOCABULARY = 61


def make(folder: str) -> None:
    torch.manual_seed(0)
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=4,
        num_experts_per_tok=2, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16,
        linear_num_key_heads=2, linear_num_value_heads=4, max_position_embeddings=128, tie_word_embeddings=False,
        layer_types=["linear_attention"] * 3 + ["full_attention"], dtype="float32")).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith(("A_log", "dt_bias")):
                weight.add_(0.1 * torch.randn_like(weight))
            else:
                weight.mul_(3)
    model.save_pretrained(folder)


@torch.no_grad()
def answer(folder: str, asked_file: str, values: str) -> None:
    model = Qwen3_5MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    asked = np.load(asked_file)
    found = np.zeros(len(asked["ids"]), np.float32)
    for start, stop in zip(asked["offsets"][:-1], asked["offsets"][1:]):
        row = torch.from_numpy(asked["ids"][start:stop].astype(np.int64))
        logits = model(row[None]).logits[0, :-1] / float(asked["temperature"])
        found[start + 1:stop] = logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0]
    np.save(values, found)


if __name__ == "__main__":
    if not os.path.exists(sys.argv[1]):
        make(sys.argv[1])
    answer(*sys.argv[1:])
