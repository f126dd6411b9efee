"""vLLM's own server, on a tiny policy whose replies a test dictates."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).parent
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
CONTEXT = 4096
START_S, REPLY_S = 900, 120
_WIDTH = 32


@dataclass(frozen=True)
class Server:
    """vLLM's OpenAI server. ``chat`` posts a request and returns the reply's JSON; RuntimeError with what it says."""

    url: str

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        return self.post("/v1/chat/completions", {"model": "policy", **body})

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=REPLY_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(error.read().decode()) from None


@pytest.fixture(scope="session")
def coder_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer over bytes and Qwen's markup, each a token, with a chat template in the manner of Qwen's coders."""
    folder = tmp_path_factory.mktemp("coder")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in MARKUP])
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(SPECIALS[2])
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "float32",
              "vocab_size": vocabulary, "hidden_size": _WIDTH, "intermediate_size": _WIDTH, "num_hidden_layers": 1,
              "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": _WIDTH, "hidden_act": "silu",
              "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
              "max_position_embeddings": CONTEXT, "eos_token_id": end}
    named = {"config.json": config, "generation_config.json": {"eos_token_id": [end]},
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[2],
                                       "pad_token": SPECIALS[0]}}
    for name, content in named.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text((HERE / "chat_template.jinja").read_text("utf-8"), "utf-8")
    layer, matrix, vector = "model.layers.0.", np.zeros((_WIDTH, _WIDTH)), np.ones(_WIDTH)
    tensors = {"model.embed_tokens.weight": np.ones((vocabulary, _WIDTH)), "model.norm.weight": vector,
               **{f"{layer}self_attn.{name}_proj.weight": matrix for name in "qkvo"},
               **{f"{layer}mlp.{name}_proj.weight": matrix for name in ("gate", "up", "down")},
               **{f"{layer}{name}.weight": vector for name in (
                   "input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")}}
    save_file({name: tensor.astype(np.float32) for name, tensor in tensors.items()}, folder / "model.safetensors",
              {"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def coder_server(coder_policy: Path, environment_python: Any) -> Iterator[Server]:
    """The server with the benchmark's parsers and thinking off."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [environment_python("vllm"), "-m", "vllm.entrypoints.openai.api_server", "--model", coder_policy,
            "--served-model-name", "policy", "--host", "127.0.0.1", "--port", port, "--dtype", "float32",
            "--max-model-len", CONTEXT, "--max-num-seqs", "4", "--enforce-eager", "--kv-cache-memory-bytes", 2**28,
            "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_xml", "--enable-auto-tool-choice",
            "--default-chat-template-kwargs", '{"enable_thinking": false}',
            "--logits-processors", "scripted_logits:Scripted"]
    env = {**os.environ, "PYTHONPATH": str(HERE), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
           "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    process = subprocess.Popen([str(part) for part in argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)
    try:
        yield Server(_started(process, f"http://127.0.0.1:{port}"))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _started(process: subprocess.Popen[str], url: str) -> str:
    """Wait for the line that says so; a thread goes on reading, so that the server never waits for its log."""
    ready, lines = threading.Event(), list[str]()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                lines.append(line)
                if "Application startup complete" in line:
                    ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    if not ready.wait(START_S) or process.poll() is not None:
        raise RuntimeError("vLLM's server did not start:\n" + "".join(lines[-40:]))
    return url
