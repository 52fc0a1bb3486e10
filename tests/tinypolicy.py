"""A policy for the tests of training: two small layers of Llama, random weights, a tokenizer made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TEXT = (
    "I hear you. That sounds hard. It makes sense that you feel lost after what your father said. "
    "You have carried this for a long time. What would help you now? I am here. Tell me more about it."
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(vocab: int = 320) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|im_end|>", "<|im_start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator([TEXT], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_model(vocab: int = 320, seed: int = 0, hidden: int = 32, layers: int = 2) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=0, pad_token_id=0, dtype="float32",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def save_tiny(folder: Path, seed: int = 0) -> Path:
    """Save a tiny policy as a model folder."""
    tokenizer = tiny_tokenizer()
    tiny_model(len(tokenizer), seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
