"""A model's chat template: a list of messages -> the one text the model was trained on.

The template is a program (jinja) that came with the model's files, so it runs in jinja's sandbox:
it can neither reach Python's internals nor change the messages. The sandbox does not bound its
running time. Names and settings are those that templates expect of `transformers`.
"""

import json
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError


class ChatTemplate:
    """A compiled template; `special_tokens` are the names it may use, such as bos_token.

    Raises ValueError when the source is no valid template.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.clear()
        environment.globals |= {
            "range": jinja2.sandbox.safe_range,
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: datetime.now().strftime(layout),
        }
        self._special_tokens = special_tokens
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the model's chat template is broken in line {error.lineno}: {error.message}"
            ) from error

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text for `messages`, ending where the assistant's answer begins if so asked.

        Raises ValueError for messages that are not {"role": str, "content": str}, and when the
        template itself refuses them or fails.
        """
        check_messages(messages)
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except Exception as error:  # whatever a program from outside can do wrong
            line = " ".join(str(error).split())
            raise ValueError(f"the model's chat template failed: {line}") from error


def check_messages(messages: Any) -> None:
    """ValueError unless `messages` is a non-empty list of {"role": str, "content": str}."""
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be a non-empty list, got {messages!r:.80}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(
                f"message {index} must be a dict with role and content, got {message!r:.80}"
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise ValueError(
                    f"message {index} must have a string {key!r}, got {message.get(key)!r:.80}"
                )


class _Namespace(jinja2.utils.Namespace):
    """jinja's namespace without names that Python itself would look up (`__html__` and the
    like)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a template may not set {name!r}")
        super().__setitem__(name, value)


class _GenerationTag(Extension):
    """{% generation %}...{% endgeneration %} marks an answer for training; here only its body
    counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter would escape HTML's characters."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
