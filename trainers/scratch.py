"""A small language model and its tokenizer, made from nothing for one domain: an ordinary Hugging Face folder.

The tokenizer is byte-level BPE, trained on the conversations themselves: no text is unknown to it, and what is rare
(emoji, Chinese) takes more tokens. The model is a Llama with tied embeddings, so that everything that reads Llama
folders reads it. Chats are written in ChatML, but for its line break after a turn; "<|im_start|>user" with its line
break is one token, and so are the two other openings, so that a message costs two tokens beside its words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from echo_env.agents.loading import END_OF_TURN
from echo_env.errors import ConfigError
from echo_env.types import Record

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OPENINGS = tuple(f"<|im_start|>{role}\n" for role in ("system", "user", "assistant"))
BYTES = 256
GLUE = "\u2060"
"""A word joiner: the tokenizer writes a quoted word as quote, joiner, space, word. (See `make_tokenizer`.)"""
QUOTES = "'\"(\u2018\u201c"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Shape(Record):
    """How large the model is."""

    vocab: int = Field(4096, gt=BYTES + 4)
    """Tokens at most; fewer where the text does not hold so many pairs."""
    hidden: int = Field(256, ge=8)
    layers: int = Field(6, ge=1)
    heads: int = Field(8, ge=1)
    kv_heads: int | None = Field(None, ge=1)
    """Heads of keys and values, shared among the others; None: as many. Fewer make the sampling faster."""
    feedforward: int = Field(688, ge=8)
    """Width of the gated feed-forward layer; 8/3 of hidden takes as many weights as an ungated one of 4."""
    positions: int = Field(4096, ge=16)
    """Longest conversation, in tokens."""
    superwords: int = Field(0, ge=0)
    """Runs of words at most that are one token each, beside those of `vocab` (`superwords.py`)."""


def make_tokenizer(
    texts: Iterable[str], vocab: int, positions: int, runs: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    A word is one token with the space before it, so the same word after an opening quote would be another token, and
    a model that quotes what it was told would have to learn that pair for every single word. So an opening quote is
    followed by a joiner and a space, which merge with the quote and the word: what is quoted is copied as it stands.

    Args:
        texts: What it will mostly read.
        vocab: Tokens at most.
        positions: Longest conversation, in tokens.
        runs: Runs of words that are one token each; where two begin at one place, the longer.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(rf"(?<=\s)\{quote}(?=\w)"), f"{quote}{GLUE} ") for quote in QUOTES]
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(f"{GLUE} ", "")])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TURN, *OPENINGS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TURN,
        additional_special_tokens=list(OPENINGS),
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(run, normalized=False) for run in runs])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> Any:
    """Return a model with random weights, the same for the same seed; the global random state is left alone.

    Raises:
        ConfigError: The heads do not divide the width into even parts.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if shape.hidden % (2 * shape.heads):
        raise ConfigError(f"{shape.heads} heads do not divide a width of {shape.hidden} into even parts")
    if shape.kv_heads and shape.heads % shape.kv_heads:
        raise ConfigError(f"{shape.kv_heads} heads of keys and values cannot be shared evenly among {shape.heads}")
    end = tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.feedforward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


def make(
    shape: Shape, texts: Iterable[str], seed: int, runs: Sequence[str] = ()
) -> tuple[PreTrainedTokenizerFast, Any]:
    """Return tokenizer and model for some texts; `save_pretrained` on both makes the folder. `runs`: one token each."""
    tokenizer = make_tokenizer(texts, shape.vocab, shape.positions, runs)
    return tokenizer, make_model(shape, tokenizer, seed)
