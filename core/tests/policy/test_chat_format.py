"""Rendering, tokenising and taking replies apart."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from grpo_bench.contract import InputError
from grpo_bench.policy import ChatFormat, ConversationError
from grpo_bench.policy.toolcalls import typed_arguments
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CALL = ("<tool_call>\n<function=edit>\n<parameter=line>\n3\n</parameter>\n<parameter=text>\n    return a\n"
        "</parameter>\n</function>\n</tool_call>")


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatFormat:
    return ChatFormat(folder)


def test_stop_tokens_come_from_both_files_without_repeats(chat: ChatFormat) -> None:
    assert chat.stop_ids == (2, 0)
    assert chat.eos_id == 2


def test_render_ends_where_the_reply_begins(chat: ChatFormat) -> None:
    text = chat.render([{"role": "user", "content": "hi"}], [])
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_conversations_that_are_nearly_equal_are_not_taken_for_each_other(chat: ChatFormat) -> None:
    def render(argument: object) -> str:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": argument}}}
        history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return chat.render(history, ())

    values = [1, True, 1.0, [1], {"1": 1}, None, OrderedDict(b=1, a=2), {"a": 2, "b": 1}]
    first = [render(value) for value in values]
    assert len({*first}) == len(values)
    assert [render(value) for value in values] == first


def test_a_conversation_that_changed_is_rendered_again(chat: ChatFormat) -> None:
    history = [{"role": "user", "content": "one"}]
    assert "one" in chat.render(history, [])
    history[0]["content"] = "two"
    assert "two" in chat.render(history, [])


def test_tools_are_written_as_json_without_escapes(chat: ChatFormat) -> None:
    tool = {"type": "function", "function": {"name": "é<&>"}}
    text = chat.render([{"role": "user", "content": ""}], [tool])
    assert json.dumps(tool, ensure_ascii=False) in text


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_encode_and_decode_lose_nothing(chat: ChatFormat, text: str) -> None:
    assert chat.decode(chat.encode(text)) == text


def test_special_tokens_are_single_ids_and_stay_visible(chat: ChatFormat) -> None:
    assert chat.encode("<|im_end|>").tolist() == [2]
    assert chat.decode(np.array([1, 2], np.int32)) == "<|im_start|><|im_end|>"


def test_lone_surrogates_become_replacement_characters(chat: ChatFormat) -> None:
    text = chat.render([{"role": "user", "content": "a\ud800b \U0001f600"}], [])
    assert "a\ufffdb \U0001f600" in text
    assert chat.decode(chat.encode(text)) == text


def test_a_template_may_refuse(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(tmp_path, template="{{ raise_exception('user first') if messages[0].role != 'user' }}")
    with pytest.raises(ConversationError, match="user first"):
        ChatFormat(folder).render([{"role": "tool", "content": ""}], [])


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_templates_are_sandboxed(write: Callable[..., Path], tmp_path: Path, source: str) -> None:
    with pytest.raises(ConversationError):
        ChatFormat(write(tmp_path, template=source)).render([{"role": "user", "content": ""}], [])


def test_names_that_templates_expect(write: Callable[..., Path], tmp_path: Path) -> None:
    source = ("{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}"
              "{{ eos_token }}{{ strftime_now('%Y') }}")
    messages = [{"role": "user", "content": ""}] * 2
    assert ChatFormat(write(tmp_path, template=source)).render(messages, []) == "user<|im_end|>2025"


def test_a_key_named_like_a_method_of_dict_does_not_hide_it(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(tmp_path, template="{% for k, v in messages[0].extra.items() %}{{ k }}={{ v }}{% endfor %}")
    assert ChatFormat(folder).render([{"role": "user", "extra": {"items": 1}}], []) == "items=1"


def test_the_template_may_stand_in_the_tokenizer_config(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "chat_template.jinja").unlink()
    templates = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": templates}))
    assert ChatFormat(folder).render([{"role": "user", "content": ""}], []) == "d"


@pytest.mark.parametrize(("name", "content", "message"), [
    ("tokenizer.json", None, "does not exist"),
    ("tokenizer.json", "{}", r"tokenizer\.json is no tokenizer"),
    ("chat_template.jinja", None, "no chat template"),
    ("chat_template.jinja", "{% if %}", "line 1"),
    ("tokenizer_config.json", "{", "no JSON"),
    ("generation_config.json", "{}", "end-of-reply"),
])
def test_a_broken_folder_is_named(write: Callable[..., Path], tmp_path: Path, name: str, content: str | None,
                                  message: str) -> None:
    folder = write(tmp_path)
    (folder / "tokenizer_config.json").write_text("{}")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=message):
        ChatFormat(folder)


def test_an_unknown_tool_parser_lists_the_known(folder: Path) -> None:
    with pytest.raises(InputError, match="qwen3_xml"):
        ChatFormat(folder, tool_parser="hermes")


def test_calls_keep_indentation_and_inner_markup(chat: ChatFormat) -> None:
    value = "  if a:\n\n\treturn '</parameter>' + '<tool_call>'\n"
    text = (f"look\n<tool_call>\n<function=edit>\n<parameter=text>\n{value}\n</parameter>\n"
            "<parameter=e>\n\n</parameter>\n</function>\n</tool_call>")
    parsed = chat.parse(text)
    assert (parsed.content, parsed.malformed) == ("look", False)
    assert [(c.name, dict(c.arguments)) for c in parsed.tool_calls] == [("edit", {"text": value, "e": ""})]


def test_several_calls_and_calls_without_parameters(chat: ChatFormat) -> None:
    submit = "<tool_call>\n<function=submit>\n</function>\n</tool_call>"
    parsed = chat.parse(f"{CALL}\n{submit}\n", "call_4")
    assert [(c.id, c.name, dict(c.arguments)) for c in parsed.tool_calls] == [
        ("call_4_0", "edit", {"line": "3", "text": "    return a"}), ("call_4_1", "submit", {})]


@pytest.mark.parametrize("text", [
    CALL.replace("</function>\n", ""), CALL.replace("</tool_call>", ""), CALL.replace("\n</parameter>", "", 1),
    CALL.replace("text", "line"), CALL + "and more", CALL + CALL[:20], "<tool_call>",
    "a<tool_call>{\"name\": 1}</tool_call>", "<function=edit>\n</function>", CALL.replace("edit", ""),
])
def test_a_malformed_call_is_an_ordinary_message(chat: ChatFormat, text: str) -> None:
    parsed = chat.parse(text)
    assert (parsed.content, parsed.tool_calls, parsed.malformed) == (text, (), True)


def test_plain_text_is_not_malformed(chat: ChatFormat) -> None:
    parsed = chat.parse("  done, see a < b  ")
    assert (parsed.content, parsed.tool_calls, parsed.malformed) == ("  done, see a < b  ", (), False)


NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=3)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.text("ab \n"), calls=CALLS)
def test_what_the_template_writes_the_parser_reads(chat: ChatFormat, content: str,
                                                   calls: list[tuple[str, dict[str, str]]]) -> None:
    content = content.rstrip()
    message = {"role": "assistant", "content": content, "tool_calls": [
        {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]}
    text = chat.render([message], []).removeprefix("<|im_start|>assistant\n").partition("<|im_end|>")[0]
    parsed = chat.parse(text)
    assert parsed.content == content
    assert [(c.name, dict(c.arguments)) for c in parsed.tool_calls] == calls


def test_reasoning_is_split_where_the_template_knows_it(thinking_folder: Path, chat: ChatFormat) -> None:
    thinking = ChatFormat(thinking_folder, enable_thinking=True)
    parsed = thinking.parse(f"so\nmuch\n</think>\n\nlook\n{CALL}")
    assert (parsed.reasoning, parsed.content, len(parsed.tool_calls)) == ("so\nmuch", "look", 1)
    assert thinking.parse("never ends").reasoning == "never ends"
    assert ChatFormat(thinking_folder).parse("plain").reasoning is None
    assert chat.parse("a</think>b").content == "a</think>b"


def test_optional_arguments_take_the_type_of_the_alternative_that_fits(chat: ChatFormat) -> None:
    kinds = {"text": {"type": ["string", "null"]}, "both": {"type": ["string", "integer"]},
             "any": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "one": {"oneOf": [{"type": "array"}, {}]},
             "odd": {"anyOf": [7, {"type": [None, "string"]}], "oneOf": "x"}, "whole": {"type": "integer"},
             "large": {"type": ["number", "array"]}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": kinds}}}]

    def typed(**values: str) -> dict[str, object]:
        body = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
        return typed_arguments(chat.parse(f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>").tool_calls[0],
                               tools)

    assert typed(text="null", both="3", any="3", one="[1]", odd="4", whole="3.0") == {
        "text": None, "both": 3, "any": 3, "one": [1], "odd": "4", "whole": 3.0}
    assert typed(text="None", both="3a", any="null", one="x", odd="null", whole="3.5") == {
        "text": "None", "both": "3a", "any": None, "one": "x", "odd": "null", "whole": "3.5"}
    assert typed(large="1e9") == {"large": 1e9}
    assert typed(large="1e999") == {"large": "1e999"}
    assert typed(large="[1, -1e999]") == {"large": "[1, -1e999]"}


def test_arguments_take_the_types_of_the_schema(chat: ChatFormat) -> None:
    types = {"i": "integer", "n": "number", "b": "boolean", "a": "array", "s": "string", "u": ["integer", "null"],
             "bad": "integer"}
    schema = {"properties": {name: {"type": kind} for name, kind in types.items()}}
    tools = [{"type": "function", "function": {"name": "other"}},
             {"type": "function", "function": {"name": "f", "parameters": schema}}]
    values = {"i": "3", "n": "2.5", "b": "True", "a": "[1,2]", "s": "7", "u": "null", "bad": "true", "free": "4"}
    body = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    call = chat.parse(f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>").tool_calls[0]
    assert typed_arguments(call, tools) == {
        "i": 3, "n": 2.5, "b": True, "a": [1, 2], "s": "7", "u": None, "bad": "true", "free": "4"}
