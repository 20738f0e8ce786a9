"""Chat templates: what they may use, what they may not, and messages that are none."""

import copy
import datetime

import pytest

from minivllm.chat_template import ChatTemplate

HI = [{"role": "user", "content": "Hi"}]


def render(source: str, messages: list[dict[str, str]] = HI, prompt: bool = True) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, prompt)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>"),
        ("{{ messages[0]['role'] | upper }}", "USER"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),  # lstrip_blocks, trim_blocks
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% set ns = namespace(n=1) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}"
         "{{ ns.n }}", "4"),
        ("{% generation %}a{{ bos_token }}{% endgeneration %}b", "a<s>b"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ dict(a=1)['a'] }}", "1"),
        ("{{ unknown }}", ""),
    ],
)  # fmt: skip
def test_what_templates_expect(source: str, text: str):
    """The names, tags and settings that published templates rely on."""
    assert render(source) == text


def test_no_generation_prompt():
    """The name is there, and false."""
    assert render("{{ add_generation_prompt }}", prompt=False) == "False"


def test_today():
    """Llama 3's template writes the date."""
    year = str(datetime.datetime.now().year)
    assert render("{{ strftime_now('%Y') }}") == year


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\nb{% if %}", "chat template is broken in line 2: "),
        ("{% for m in messages %}", "chat template is broken in line 1: "),
        ("{{ raise_exception('roles must alternate') }}", "failed: roles must alternate"),
        ("{{ raise_exception('two\\nlines') }}", "failed: two lines"),
        ("{{ messages[0].content.nope() }}", "failed: 'str object' has no attribute 'nope'"),
        ("{{ 1 / 0 }}", "failed: division by zero"),
        ("{{ 'a' + 1 }}", "chat template failed: "),
        ("{{ messages | nope }}", "chat template is broken in line 1: No filter named 'nope'"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "failed: maximum recursion"),
        ("{% for i in range(999999999) %}{% endfor %}", "failed: Range too big"),
        ("{% set ns = namespace() %}{% set ns.__html__ = 1 %}", "may not set '__html__'"),
        ("{{ namespace(**{'__call__': 1}) }}", "may not set '__call__'"),
        ("{% include '/etc/passwd' %}", "chat template failed: "),
    ],
)
def test_a_broken_template_says_so(source: str, message: str):
    """One line, whether it cannot be read, refuses these messages, or runs into an error."""
    with pytest.raises(ValueError, match=message) as caught:
        render(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ (messages | attr('__class__')).__name__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ dict.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}{{ lipsum.__globals__.os }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ '{a.__class__}'.format_map({'a': messages}) }}",
        "{% set ns = namespace() %}{% set ns.__html__ = 1 %}",
        "{% set ns = namespace(**{'__class__': 1}) %}",
        "{{ (messages.append | string)[:0] }}{{ messages.append({'role': 'x'}) }}",
        "{{ messages[0].update(content='changed') }}",
        "{{ messages.clear() }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ __import__('os').getcwd() }}",
        "{% import os %}",
    ],
)
def test_a_hostile_template_stays_in_its_sandbox(source: str):
    """A model's files come from anywhere: a template reaches nothing but what it was given.

    It is stopped, or finds nothing; the messages stay as they were.
    """
    messages = copy.deepcopy(HI)
    try:
        text = render(source, messages)
    except ValueError as error:
        text = str(error)
        assert text.startswith("the model's chat template ")
    for leak in ("<class", "<module", "<function", "root:", "object at", "{'__name__'"):
        assert leak not in text
    assert messages == HI


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r"messages must be a non-empty list, got \[\]"),
        ("hi", "messages must be a non-empty list, got 'hi'"),
        ({"role": "user", "content": "hi"}, "messages must be a non-empty list"),
        (["hi"], "message 0 must be a dict with role and content, got 'hi'"),
        ([*HI, {"role": "user"}], "message 1 must have a string 'content', got None"),
        ([{"content": "a"}], "message 0 must have a string 'role', got None"),
        ([{"role": 1, "content": "a"}], "message 0 must have a string 'role', got 1"),
        ([{"role": "user", "content": [{"type": "text"}]}], "must have a string 'content', got "),
    ],
)
def test_messages_that_are_none(messages: object, message: str):
    """Said before the template sees them, with the place in the list."""
    with pytest.raises(ValueError, match=message) as caught:
        render("{{ messages }}", messages)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 160
