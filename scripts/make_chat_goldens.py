#!/usr/bin/env python3
"""Writes tests/golden/chat/cases.json: conversations and the text that the models' own templates produce from them.

Usage: make_chat_goldens.py TOKENIZERS NAME=FILE... TOKENIZERS holds llama3.1.json and qwen2.5.json. NAME is one of octet's
templates, FILE the chat_template of a model's tokenizer_config.json: llama3 of Meta-Llama-3-8B-Instruct, llama3.1 of
Llama-3.1-8B-Instruct, chatml of Qwen2.5-7B-Instruct, qwen3 of Qwen3-0.6B, llama2 of Llama-2-7b-chat-hf, mistral_v1 of
Mistral-7B-Instruct-v0.2, mistral_v3 of its v0.3, mistral_v3_tekken of Mistral-Nemo-Instruct-2407. Cases of templates that
are not named stay as they are. Needs the transformers package. `text` is the whole conversation, `prompt` what comes before
the last answer, and `ids` are those of the text, for templates whose tokenizer is there.
"""
import json
import pathlib
import sys

from transformers import PreTrainedTokenizerFast

CONVERSATIONS = [
    [("user", "Hi"), ("assistant", "Hello!")],
    [("system", "Be brief."), ("user", "2+2?"), ("assistant", "4"), ("user", "Sure?"), ("assistant", "Yes.")],
    [("user", "  \n spaces around \t\n"), ("assistant", " \u00a0\u2003answer\u3000 \x1f\n")],
    [("system", ""), ("user", "an empty system message"), ("assistant", "")],
    [("user", "Gr\u00fc\u00dfe \u4f60\u597d \U0001f600 e\u0301"), ("assistant", "\u00e9\u200b \U00010348")],
    [("user", "code:\n```\nfor i in x:\n\tpass\n```"), ("assistant", "\n\n1. one\n2. two\n")],
    [("user", "a"), ("system", "later system"), ("user", "b"), ("assistant", "c")],
    [("assistant", "I begin."), ("user", "OK")],
]
TOOLS = [
    {"type": "function",
     "function": {"name": "get_weather", "description": "Wetter f\u00fcr \"einen\" Ort",
                  "parameters": {"type": "object",
                                 "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
                                 "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


ONE_CALL = [
    {"role": "user", "content": "Weather in K\u00f6ln?"},
    {"role": "assistant", "content": "", "tool_calls": [call("get_weather", city="K\u00f6ln", days=2, exact=1.5)]},
    {"role": "tool", "content": "{\"degrees\": 7}"},
    {"role": "assistant", "content": "7 degrees."},
]
TWO_CALLS = [
    {"role": "system", "content": "You may call."},
    {"role": "user", "content": "Both?"},
    {"role": "assistant", "content": "I ask.", "tool_calls": [call("now"), call("get_weather", city="A\nB", days=[])]},
    {"role": "tool", "content": "12:00"},
    {"role": "tool", "content": "rain"},
    {"role": "assistant", "content": "Rain at noon."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Welcome."},
]
REASONING = [
    [{"role": "user", "content": "2+2?"}, {"role": "assistant", "reasoning_content": "\nsum\n", "content": "\n4"}],
    [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>\nsum\n</think>\n\n4"},
     {"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "<think>\nagain\n</think>\n\n6"}],
    [ONE_CALL[0], dict(ONE_CALL[1], reasoning_content="I must ask."), ONE_CALL[2], ONE_CALL[3]],
]
TAKES_TURNS = {"llama2", "mistral_v1", "mistral_v3", "mistral_v3_tekken"}
TOKENIZER = {"llama3": "llama3.1.json", "llama3.1": "llama3.1.json", "chatml": "qwen2.5.json", "qwen3": "qwen2.5.json"}


def cases_of(name):
    """Messages and tools."""
    for conversation in CONVERSATIONS:
        roles = [role for role, _ in conversation if role != "system"]
        if name in TAKES_TURNS and (roles[0] != "user" or len(set(roles[::2])) > 1 or "later system" in str(conversation)):
            continue
        yield [{"role": role, "content": content} for role, content in conversation], None
    if name in ("llama3.1", "chatml", "qwen3"):
        # Llama's own template leaves out the text of a message with `tool_calls` in it, even an empty list.
        yield ONE_CALL, TOOLS
    if name in ("chatml", "qwen3"):
        yield ONE_CALL, None
        yield TWO_CALLS, TOOLS
    if name == "qwen3":
        yield from ((conversation, None) for conversation in REASONING)


def main():
    tokenizers = pathlib.Path(sys.argv[1])
    named = dict(argument.split("=", 1) for argument in sys.argv[2:])
    target = pathlib.Path(__file__).parent.parent / "tests/golden/chat/cases.json"
    cases = [case for case in json.loads(target.read_text()) if case["template"] not in named]
    for name, path in named.items():
        inst = name in TAKES_TURNS
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(tokenizers / TOKENIZER.get(name, "qwen2.5.json")), eos_token="</s>" if inst else None,
            bos_token="<s>" if inst else "<|begin_of_text|>" if "llama" in name else None,
            chat_template=pathlib.Path(path).read_text())
        for messages, tools in cases_of(name):
            case = {"template": name, "messages": messages}
            if tools:
                case["tools"] = tools
            case["text"] = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
            before = messages[:-1] if messages[-1]["role"] == "assistant" else messages
            # Mistral's v3 shows the system message only in front of a question that is still open.
            if inst and "v3" in name and messages[0]["role"] == "system":
                del case["text"]
            if before:
                case["prompt"] = tokenizer.apply_chat_template(before, tools=tools, tokenize=False,
                                                               add_generation_prompt=True)
            if name in TOKENIZER:
                case["ids"] = tokenizer(case["text"], add_special_tokens=False)["input_ids"]
            cases.append(case)
    target.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
