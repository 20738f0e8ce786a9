"""Text <-> token ids, and a chat -> text, for one model.

Invariant: the same ids and the same text as `transformers` gives; the work is done by the same
library underneath (`tokenizers`). Text that arrives token by token is detokenizer.py's.
"""

from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from minivllm.chat_template import ChatTemplate
from minivllm.gguf_file import GGUFFile
from minivllm.model_files import TINY, find_model
from minivllm.token_bytes import bytes_of_character, token_to_bytes
from minivllm.tokenizer_files import TokenizerParts, read_folder_tokenizer, read_gguf_tokenizer

TINY_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tokenizer:
    """One model's tokenizer.

    >>> tokenizer = Tokenizer.from_model("tiny")  # 3 special tokens, then one token a byte
    >>> tokenizer.encode("Hi<|im_end|>")
    [75, 108, 2]
    >>> tokenizer.decode([75, 108, 2])
    'Hi'
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._template = parts.chat_template
        self._special_tokens = parts.special_tokens
        self._to_bytes, self.loses_first_space = token_to_bytes(parts.backend)
        self._bytes_of: dict[int, bytes] = {}  # what token_bytes has answered so far
        self.eos_token_ids = parts.eos_token_ids
        self.vocab_size = parts.backend.get_vocab_size()
        added = parts.backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)

    @classmethod
    def from_model(cls, model: str) -> "Tokenizer":
        """The tokenizer of a model: "smollm2", a GGUF file, a Hugging Face folder, or "tiny".

        Raises ValueError, one line, as `load_weights` does.
        """
        if model == TINY:
            return cls(_tiny_parts())
        path = find_model(model)
        if path.is_dir():
            return cls(read_folder_tokenizer(path))
        return cls(read_gguf_tokenizer(path, GGUFFile(path).metadata))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; special tokens written in it count as such.

        `add_special_tokens` adds what the model wants around a text (Llama 3 a begin of text,
        SmolLM2 nothing); a text from `apply_chat_template` has them already, so give False there.
        Raises ValueError for anything but a str of valid Unicode.
        """
        if not isinstance(text, str):
            raise ValueError(f"text must be a str, got {type(text).__name__}")
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeError, TypeError) as error:
            raise ValueError(f"text cannot be encoded: {error}") from error

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; none for an id the tokenizer does not know."""
        if token_id not in self._bytes_of:
            token = self._backend.id_to_token(token_id)
            self._bytes_of[token_id] = b"" if token is None else self._to_bytes(token)
        return self._bytes_of[token_id]

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a chat in the form the model was trained on.

        `messages`: [{"role": "user", "content": "..."}, ...]. Raises ValueError: no messages,
        another form of message, no or a broken template.
        """
        return self._chat_template.render(messages, add_generation_prompt)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        if not self._template:
            raise ValueError("this model has no chat template; give it plain text instead")
        return ChatTemplate(self._template, self._special_tokens)


def _tiny_parts() -> TokenizerParts:
    """The tokenizer of the random model: ids 0 to 2 special as in SmolLM2, byte b is id b + 3."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    by_byte = sorted((byte, character) for character, byte in bytes_of_character().items())
    tokens = special + [character for _, character in by_byte]
    backend = Backend(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    names = {"bos_token": special[1], "eos_token": special[2], "pad_token": special[2]}
    return TokenizerParts(backend, [2, 0], names, TINY_TEMPLATE)
