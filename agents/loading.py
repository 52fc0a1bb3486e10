"""Loading a model from a local folder: offline, quietly, and with an error for whatever the folder lacks.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_env.agents.attention import share_heads
from echo_env.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

END_OF_TURN = "<|im_end|>"
"""What ends a turn in the ChatML format."""


def require(*packages: str) -> None:
    """Check that packages of the extra "hf" are installed, without importing them.

    Raises:
        missing_extra: One is not.
    """
    for package in packages:
        if find_spec(package) is None:
            raise missing_extra(package, "hf")


@contextmanager
def offline() -> Iterator[None]:
    """Keep transformers off the network and quiet, and put everything back afterwards."""
    hub: Any = import_module("huggingface_hub.constants")
    voice = import_module("transformers.utils.logging")
    before, level, bar = hub.HF_HUB_OFFLINE, voice.get_verbosity(), voice.is_progress_bar_enabled()
    variable = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"], hub.HF_HUB_OFFLINE = "1", True
    voice.set_verbosity_error()
    voice.disable_progress_bar()
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before
        if variable is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = variable
        voice.set_verbosity(level)
        if bar:
            voice.enable_progress_bar()


def load_model(folder: Path, device: str, threads: int | None) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load tokenizer and model.

    Args:
        folder: Folder with `config.json`, safetensors weights and a tokenizer with a chat template.
        device: "cpu" loads in fp32, "cuda" in bf16.
        threads: torch's threads, for the whole process; None leaves them alone.

    Raises:
        ConfigError: The folder lacks something or cannot be read, or there is no such device.
        missing_extra: torch or transformers is not installed.
    """
    if not (folder / "config.json").is_file():
        found = "has no config.json" if folder.is_dir() else "is not a folder"
        raise ConfigError(
            f"'{folder}' {found}; a model is a local folder in Hugging Face format",
            "models are never downloaded here; fetch one first:  hf download OWNER/NAME --local-dir FOLDER",
        )
    require("torch", "transformers")
    import torch
    from safetensors import SafetensorError

    auto = import_module("transformers")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda, but torch sees no GPU", "use device=cpu, or install a CUDA build of torch")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with offline():
            tokenizer = auto.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            if tokenizer.chat_template is None:
                raise ConfigError(
                    f"the tokenizer in '{folder}' has no chat template",
                    "use an instruct or chat model, or put its chat_template.jinja into the folder",
                )
            model = auto.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32 if device == "cpu" else torch.bfloat16,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
    except (OSError, ValueError, ImportError, SafetensorError) as e:
        raise ConfigError(f"the model in '{folder}' cannot be loaded: {e}") from e
    share_heads(model)
    return tokenizer, model.to(device).eval()


def reusable(model: PreTrainedModel) -> bool:
    """Return whether a start that was read once can be read on from: full attention in every layer.

    Raises:
        ConfigError: The model has recurrent layers.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kinds = {type(layer) for layer in DynamicCache(config=model.config).layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        name = model.config.name_or_path or model.config.model_type
        raise ConfigError(f"the model '{name}' has recurrent layers, which are not supported", "use a transformer")
    return kinds <= {DynamicLayer}


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the tokens that end a reply: end of sequence by model and tokenizer, and `<|im_end|>` where known."""
    of_model = model.generation_config.eos_token_id if model.generation_config else None
    ends = of_model if isinstance(of_model, list) else [of_model]
    return frozenset(
        t for t in (*ends, tokenizer.eos_token_id, tokenizer.get_vocab().get(END_OF_TURN)) if t is not None
    )


def takes_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the chat template has a place for a system prompt; else it goes before the first message."""
    from jinja2 import TemplateError

    chat = [{"role": "system", "content": "@system@"}, {"role": "user", "content": "@user@"}]
    try:
        return "@system@" in tokenizer.apply_chat_template(chat, tokenize=False)
    except TemplateError:
        return False
