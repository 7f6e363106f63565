#!/usr/bin/env python3
"""Checks that the chat templates that octet exports render the same text as octet itself.

Usage: check_chat_templates.py DATA_TESTS, the program with the tests of src/data. The environment of Jinja is that of
Transformers' apply_chat_template; where the transformers package is there, that function itself is asked as well. Exits with
77 where jinja2 is absent.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as error:
    print(f"skipped: the Python package jinja2 is not installed ({error})")
    sys.exit(77)


def raise_exception(message):
    raise TemplateError(message)


def tojson(value, indent=None):
    return json.dumps(value, ensure_ascii=False, indent=indent)


def make_environment():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment


def transformers_renderer():
    """apply_chat_template, or nothing where the package is absent."""
    try:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        return None
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    return lambda jinja, messages, tools, prompt: tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=jinja, tokenize=False, add_generation_prompt=prompt)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "cases.json"
        subprocess.run([sys.argv[1], "--gtest_filter=ChatJinja.WritesTheCasesForTheReader"], check=True,
                       env=dict(os.environ, OCTET_CHAT_CASES=str(path)), stdout=subprocess.DEVNULL)
        cases = json.loads(path.read_text())
    environment = make_environment()
    renderers = {"jinja2": lambda jinja, messages, tools, prompt: environment.from_string(jinja).render(
        messages=messages, tools=tools, add_generation_prompt=prompt)}
    if (own := transformers_renderer()) is not None:
        renderers["transformers"] = own
    wrong, checked = 0, 0
    for case in cases:
        messages = case["messages"]
        asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        for key, given, prompt in (("text", messages, False), ("prompt", asked, True)):
            if key not in case:
                continue
            for name, render in renderers.items():
                checked += 1
                text = render(case["jinja"], given, case["tools"], prompt)
                if text != case[key]:
                    wrong += 1
                    print(f"{case['name']} in {name}, {key} of {json.dumps(given)}:\n"
                          f"  octet {case[key]!r}\n  jinja {text!r}")
    print(f"{checked} renderings by {' and '.join(renderers)}, {wrong} of them wrong")
    return 1 if wrong or checked < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
