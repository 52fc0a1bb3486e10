"""The model under test: any local Hugging Face folder as a policy, for one conversation or for many at once.

Importing this module imports neither torch nor transformers. Nothing here touches the network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypedDict, Unpack

from pydantic import Field, ValidationError

from echo_env.agents.generation import Memory, generate
from echo_env.agents.loading import load_model, reusable, stop_tokens, takes_system
from echo_env.errors import ConfigError
from echo_env.roles import Observation
from echo_env.types import Message, Record

if TYPE_CHECKING:
    from torch import Tensor


SPOKEN_UNDER = "echo_env.json"
"""File in a model's folder: what it was trained under."""


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
        prompt = system_prompt(system)
        self.id = f"{name or folder.resolve().name}+{prompt.id}"
        self.max_new_tokens, self.temperature, self.top_p = max_new_tokens, temperature, top_p
        self.tokenizer, self.model = load_model(folder, device, threads)
        self.max_context = min(max_context, getattr(self.model.config, "max_position_embeddings", max_context))
        self.stops = stop_tokens(self.model, self.tokenizer)
        self._seed, self._system = seed, prompt.text
        self._system_role = takes_system(self.tokenizer)
        self._memory = Memory(reuse_tokens if reusable(self.model) else 0)
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
        chat = chat_of(messages, self._system, system_role=self._system_role)
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
        """Return the new tokens of each row, without the one that ended it; `noise` is [B, max_new_tokens]."""
        self._memory.check(self.model)
        drawn = generate(
            self.model,
            prompts,
            [self._memory.recall(p) for p in prompts],
            noise,
            [self.max_new_tokens] * len(prompts),
            stops=self.stops,
            temperature=self.temperature,
            top_p=self.top_p,
        )
        self._memory.add([d.past for d in drawn if d.past is not None])
        return [d.ids[:-1] if d.ids[-1] in self.stops else d.ids for d in drawn]


class SpokenUnder(Record):
    """What a model was trained to speak under; without it, a policy would be measured on what it never saw."""

    system: str | None = None
    """System prompt; "" is none at all. None: the shipped one."""
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest reply, in tokens."""

    @classmethod
    def of(cls, folder: Path) -> SpokenUnder:
        """Read what a folder's model was trained under; nothing where it was not trained here.

        Raises:
            ConfigError: The file is damaged.
        """
        file = folder / SPOKEN_UNDER
        if not file.is_file():
            return cls()
        try:
            return cls.model_validate_json(file.read_bytes())
        except ValidationError as e:
            raise ConfigError(f"{file} cannot be read: {e.errors()[0]['msg']}", "delete it, or train again") from None

    def save(self, folder: Path) -> None:
        """Write it beside the weights."""
        (folder / SPOKEN_UNDER).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def local_model(path: str | Path, **options: Unpack[Options]) -> LocalModel:
    """Return the policy of a model folder. What it was trained under (`SpokenUnder`) stands where no option is given.

    Raises:
        ConfigError: There is no such folder, or it has no `config.json`, no safetensors or no chat template.
        missing_extra: torch or transformers is not installed.
    """
    trained = SpokenUnder.of(Path(path).expanduser())
    if trained.system is not None:
        options.setdefault("system", trained.system)
    if trained.max_new_tokens is not None:
        options.setdefault("max_new_tokens", trained.max_new_tokens)
    return LocalModel(path, **options)


def chat_of(messages: Sequence[Message], system: str, *, system_role: bool = True) -> list[dict[str, str]]:
    """Return a conversation as chat templates and servers take it.

    Args:
        messages: The conversation, the user's newest message last.
        system: System prompt; empty for none.
        system_role: Whether there is a place for it; else it goes before the first message.
    """
    chat = [{"role": "user" if m.role == "user" else "assistant", "content": m.text} for m in messages]
    if system and system_role:
        chat.insert(0, {"role": "system", "content": system})
    elif system:
        chat[0]["content"] = f"{system}\n\n{chat[0]['content']}"
    return chat


def shorten(messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]) -> list[Message]:
    """Return the messages without the oldest exchanges, as few of them as it takes to fit.

    The first message stays, whatever it takes: of u1 c1 u2 c2 u3 goes c1 u2 first. What is left alternates as before.
    It may still not fit once u1, the last reply and the newest message are all there is.
    """
    kept = list(messages)
    while len(kept) > 3 and not fits(kept):
        del kept[1:3]
    return kept


class SystemPrompt(NamedTuple):
    """A system prompt with its id."""

    id: str
    text: str


def system_prompt(system: str | None) -> SystemPrompt:
    """Return the system prompt, its id from the first line of the shipped file or from the text's digest."""
    if system is not None:
        return SystemPrompt(
            f"prompt-{blake2b(system.encode(), digest_size=4).hexdigest()}" if system else "bare", system
        )
    head, _, text = (
        files("echo_env.agents").joinpath("prompts/companion.md").read_text(encoding="utf-8").partition("\n")
    )
    return SystemPrompt(head.removeprefix("<!--").removesuffix("-->").strip(), text.strip())
