#!/usr/bin/env python3
"""Writes tests/golden/chat/cases.json: conversations and the text that the models' own templates produce from them.

Usage: make_chat_goldens.py TOKENIZERS llama3=FILE llama3.1=FILE chatml=FILE. TOKENIZERS holds llama3.1.json and qwen2.5.json;
each FILE is the chat_template of a model's tokenizer_config.json (Meta-Llama-3-8B-Instruct, Llama-3.1-8B-Instruct,
Qwen2.5-7B-Instruct). Needs the transformers package. The ids are those of the whole rendered text.
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
TOKENIZER = {"llama3": "llama3.1.json", "llama3.1": "llama3.1.json", "chatml": "qwen2.5.json"}


def main():
    tokenizers = pathlib.Path(sys.argv[1])
    cases = []
    for name, path in (argument.split("=", 1) for argument in sys.argv[2:]):
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizers / TOKENIZER[name]),
                                            bos_token="<|begin_of_text|>" if "llama" in name else None,
                                            chat_template=pathlib.Path(path).read_text())
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            cases.append({"template": name, "messages": messages, "text": text, "ids": ids})
    target = pathlib.Path(__file__).parent.parent / "tests/golden/chat/cases.json"
    target.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
