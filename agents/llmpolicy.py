"""The model under test, wherever LiteLLM reaches it: it is sent the conversation, and nothing else."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from hashlib import blake2b

from echo_env.agents.llm.asks import Ask, ChatMessage
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llm.rolemodels import short_name
from echo_env.roles import Observation

PLAIN = "plain"
"""The name of the shipped system prompt, one line in the conversation's language."""


class LlmPolicy:
    """A language model as the companion.

    Args:
        client: Whom to ask; the role is `policy`.
        seed: Seed of everything drawn. Without `for_episode`, a conversation's draws depend on its words as well.
        system: System prompt; "" is none at all, "plain" the shipped line.
        temperature: None is the model's own, as for `max_tokens`.
        max_tokens: Longest reply, in tokens. One that reaches it is a reply, cut where it is.
    """

    waits = True

    def __init__(
        self,
        client: LlmClient,
        seed: int = 0,
        *,
        system: str = "",
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.id = f"llm:{short_name(client.models.of('policy'))}+{_prompt_id(system)}"
        self._client, self._seed, self._system = client, seed, system
        self._temperature, self._max_tokens = temperature, max_tokens
        self._episode: int | None = None

    def for_episode(self, seed: int) -> LlmPolicy:
        """Return the same policy, whose draws depend on this conversation's seed."""
        bound = copy.copy(self)
        bound._episode = seed
        return bound

    async def respond(self, observation: Observation) -> str:
        """Return the reply; what the model thought stands before it in a `<think>` block, which no role sees.

        Raises:
            LlmFailure: There is no reply.
        """
        chat = tuple(ChatMessage("user" if m.role == "user" else "assistant", m.text) for m in observation.messages)
        answer = await self._client.ask(
            Ask(
                role="policy",
                messages=(*self._system_message(observation.language), *chat),
                prompt=_prompt_id(self._system),
                seed=self._seed_of(observation),
                temperature=self._temperature,
                max_tokens=self._max_tokens,
                may_be_cut=True,
            )
        )
        return f"<think>{answer.thinking}</think>{answer.text}" if answer.thinking else answer.text

    def _system_message(self, language: str) -> tuple[ChatMessage, ...]:
        if self._system == PLAIN:
            return prompt("policy", language).render()
        return (ChatMessage("system", self._system),) if self._system else ()

    def _seed_of(self, observation: Observation) -> int:
        said = self._episode if self._episode is not None else "\0".join(m.text for m in observation.messages)
        return zlib.crc32(f"{self._seed}/{len(observation.messages)}/{said}".encode()) % 2**31


def _prompt_id(system: str) -> str:
    if system == PLAIN:
        return f"policy-{prompt('policy', 'en').version}"
    return f"prompt-{blake2b(system.encode(), digest_size=4).hexdigest()}" if system else "bare"


def policy_of(name: str) -> Callable[..., LlmPolicy]:
    """Return what builds a policy: "llm:MODEL", or "llm:" and a models file.

    What it builds takes the options of `LlmPolicy`: seed, system, temperature, max_tokens.
    """
    client = client_of(name)

    def build(
        seed: int = 0, system: str = "", temperature: float | None = None, max_tokens: int | None = None
    ) -> LlmPolicy:
        return LlmPolicy(client, seed, system=system, temperature=temperature, max_tokens=max_tokens)

    return build
