"""Controls: what a policy earns when something that it should need is taken from it."""

from __future__ import annotations

from collections.abc import Sequence

from echo_env.build import WorldConfig, build_session, conversation_seed
from echo_env.profiles import Scenario
from echo_env.roles import Observation, Policy
from echo_env.types import Message


class Swapped:
    """A policy that is shown another conversation's user messages in place of those it answers.

    A policy that listens loses most of what it earns; one that plays a script loses nothing.

    Args:
        policy: The policy to test.
        messages: User messages of another conversation, in order; the last one is repeated when they run out.
    """

    def __init__(self, policy: Policy, messages: Sequence[str]) -> None:
        if not messages:
            raise ValueError("a swapped policy needs at least one message of another conversation")
        self.policy = policy
        self.messages = tuple(messages)
        self.id = f"{policy.id}-swapped"

    async def respond(self, observation: Observation) -> str:
        """Answer the message that stood at the same turn of the other conversation."""
        return await self.policy.respond(swapped(observation, self.messages))


def swapped(observation: Observation, messages: Sequence[str]) -> Observation:
    """Return an observation with another conversation's user messages in it; the last is repeated when they run out."""
    shown: list[Message] = []
    for index, message in enumerate(observation.messages):
        if message.role == "user":
            message = Message(role="user", text=messages[min(index // 2, len(messages) - 1)])
        shown.append(message)
    return Observation(tuple(shown), observation.language)


async def user_messages(policy: Policy, scenario: Scenario, seed: int = 0) -> tuple[str, ...]:
    """Play one conversation and return what the user said in it."""
    session = build_session(WorldConfig(), scenario, conversation_seed(seed, scenario.id))
    observation = await session.open()
    while session.outcome is None:
        observation = (await session.reply(await policy.respond(observation))).observation
    return tuple(m.text for m in observation.messages if m.role == "user")
