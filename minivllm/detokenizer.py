"""Ids that arrive one by one -> text that can be shown at once.

One token is not one character: "ď" may take two tokens, an emoji four. Tokens are bytes, so this is
reading UTF-8 from a stream: whole characters come out, the begun one waits.
Invariant: all that `add` and `finish` return, joined, is `tokenizer.decode` of all ids at once
(with a SentencePiece tokenizer only while its byte tokens form valid UTF-8: it discards whole runs
of them).
"""

import codecs
from collections.abc import Iterable

from minivllm.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one request as it grows; each token costs the same, however long the text.

    The three bytes of "€" arrive one by one:

    >>> tokenizer = Tokenizer.from_model("tiny")
    >>> text = IncrementalDetokenizer(tokenizer)
    >>> [text.add([token_id]) for token_id in tokenizer.encode("5€!")]
    ['5', '', '', '€', '!']
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._lose_space = tokenizer.loses_first_space

    def add(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens complete; a begun one stays back."""
        shown = [i for i in token_ids if i not in self._skipped]
        return self._decode(b"".join(map(self._tokenizer.token_bytes, shown)), final=False)

    def finish(self) -> str:
        """What is left of a character that never became whole: U+FFFD, or nothing."""
        return self._decode(b"", final=True)

    def _decode(self, data: bytes, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if self._lose_space and text:
            self._lose_space = False
            text = text.removeprefix(" ")
        return text
