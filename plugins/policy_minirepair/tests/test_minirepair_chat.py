"""Template, tokenizer and corpus against the gateway's own code: what is pretrained is what a run renders."""

import json
import random

import numpy as np
import pytest
from grpo_bench.policy import ChatFormat
from grpo_bench_agent_toolcall.agent import TOOLS
from grpo_bench_env_minirepair.tasks import FAMILIES, draw
from grpo_bench_policy_minirepair import BASE, corpus
from grpo_bench_policy_minirepair.template import SOURCE, Template
from grpo_bench_policy_minirepair.tokenizer import SCAFFOLD, SPECIAL
from tokenizers import Tokenizer

TEMPLATE = Template()


@pytest.fixture(scope="module")
def chat():
    return ChatFormat(BASE)


def call_message(name, arguments, content=""):
    function = {"name": name, "arguments": arguments}
    calls = [{"id": "1", "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def test_base_folder_carries_the_template_of_the_package():
    assert (BASE / "chat_template.jinja").read_text("utf-8") == SOURCE


def test_gateway_renders_as_the_corpus_does(chat):
    messages = [
        {"role": "user", "content": "fix it"},
        call_message("edit", {"line": "2", "text": "    return x"}),
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    text = TEMPLATE.render(messages, TOOLS, add_generation_prompt=True)
    assert chat.render(messages, TOOLS) == text
    assert text == (
        "<|im_start|>system\nTools: view, edit, test, submit<|im_end|>\n<|im_start|>user\nfix it<|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>\n<function=edit>\n<parameter=line>\n2\n</parameter>\n<parameter=text>\n"
        "    return x\n</parameter>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nok\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_system_message_and_neighbouring_tool_results():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        call_message("view", {}, content="Looking."),
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "content": "b"},
    ]
    text = TEMPLATE.render(messages, (), add_generation_prompt=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nLooking.\n"
        "<tool_call>\n<function=view>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\na\n"
        "</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
    )


def test_what_the_script_writes_parses_and_renders_back(chat):
    arguments = {"line": "3", "text": "        acc += x  # 'quoted' <b>"}
    written = corpus.written_call("edit", arguments)
    parsed = chat.parse(written.removesuffix("<|im_end|>"))
    assert [(c.name, dict(c.arguments)) for c in parsed.tool_calls] == [("edit", arguments)]
    prompt = [{"role": "user", "content": "x"}]
    before = chat.render(prompt, TOOLS)
    again = [*prompt, call_message("edit", dict(parsed.tool_calls[0].arguments))]
    assert chat.render(again, TOOLS).startswith(before + written)


def test_demonstration_tokens_are_the_gateways(chat):
    """Segments tokenise one by one to the ids of the whole conversation, so recorded ids extend each other."""
    for index in range(len(FAMILIES)):
        document = corpus.demonstration(draw("pretrain", index), TEMPLATE, random.Random(index))
        parts = np.concatenate([chat.encode(segment.text) for segment in document])
        assert np.array_equal(parts, chat.encode("".join(segment.text for segment in document)))
        assert chat.decode(parts) == "".join(segment.text for segment in document)
        assert all(chat.encode(s.text)[-1] == chat.eos_id for s in document[1::2])


def test_tokenizer_is_lossless_and_keeps_scaffolding_whole(chat):
    odd = "a\tb\r\n  é 漢 \x00 <|im_end|> ' \" \\ 12345 __x__"
    assert chat.decode(chat.encode(odd)) == odd
    for text in (*SPECIAL, *SCAFFOLD):
        assert len(chat.encode(text)) == 1


def answer(document):
    return "".join(segment.text for segment in document[1:]).removesuffix("<|im_end|>")


def test_reviews_and_listings_are_true():
    for index in range(len(FAMILIES)):
        problem = draw("pretrain", index)
        assert answer(corpus.review(problem, TEMPLATE)) == f"{problem.fix.line}\t{problem.fix.text}"
        listing = answer(corpus.listing(problem, TEMPLATE)).split("\n")
        assert [line.partition("\t")[2] for line in listing] == list(problem.correct)


def test_demonstrations_are_seldom_right():
    right = tried = 0
    for index in range(20 * len(FAMILIES)):
        problem = draw("pretrain", index)
        document = corpus.demonstration(problem, TEMPLATE, random.Random(index))
        first = next(s.text for s in document if "<function=edit>" in s.text)
        right += first == corpus.fix_call(problem.fix)
        tried += 1
    assert 0.02 < right / tried < 0.4


def test_opening_is_what_the_agent_shows_first(chat):
    problem = draw("heldout", 3)
    shown = corpus.opening(problem, TEMPLATE)
    assert problem.statement in shown
    assert shown.endswith("<|im_start|>assistant\n")
    assert len(chat.encode(shown)) < 110


def test_tokenizer_files_agree():
    settings = json.loads((BASE / "tokenizer_config.json").read_text())
    generation = json.loads((BASE / "generation_config.json").read_text())
    config = json.loads((BASE / "config.json").read_text())
    tokens = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    assert (settings["eos_token"], settings["pad_token"]) == ("<|im_end|>", "<|endoftext|>")
    assert generation["eos_token_id"] == config["eos_token_id"] == tokens.token_to_id("<|im_end|>")
    assert generation["pad_token_id"] == config["pad_token_id"] == tokens.token_to_id("<|endoftext|>")
    assert config["vocab_size"] == tokens.get_vocab_size()


def test_transformers_reads_tokenizer_and_template():
    transformers = pytest.importorskip("transformers")
    auto = transformers.AutoTokenizer.from_pretrained(BASE)
    messages = [{"role": "user", "content": "fix it"}, call_message("edit", {"line": "2", "text": "    return x"})]
    ours = TEMPLATE.render(messages, TOOLS, add_generation_prompt=True)
    theirs = auto.apply_chat_template(messages, tools=list(TOOLS), add_generation_prompt=True, tokenize=False)
    assert theirs == ours
    assert auto(ours).input_ids == Tokenizer.from_file(str(BASE / "tokenizer.json")).encode(ours).ids
