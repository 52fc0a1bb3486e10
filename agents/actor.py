"""The person as a language model: persona, life, the conversation, and what the director hands over. Nothing else.

Echo-N1 section 4.3.2 ("strict evaluation isolation"): the actor knows of no judging. The plot stays latent: of the
lines of its story it is shown those of its life, and of the rest only what the director has it bring up now. What it
says is cleaned and checked; talk that is no person's is refused and asked for once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from echo_env.agents.llm.asks import Ask, ChatMessage
from echo_env.agents.llm.client import LlmClient, LlmFailure, client_of
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llm.rolemodels import short_name, unless_set
from echo_env.agents.people import card, phrases
from echo_env.agents.transcript import cut, shared_runs, talk, tokens
from echo_env.profiles import STAGES
from echo_env.roles import ActorProfile, ActorView, chapter_of

WINDOW = 12
"""Exchanges that the actor remembers word for word; what it told before stands in `told`."""
LONGEST = 1_200
"""Characters of a message in that window."""
SENTENCES = 3
"""Sentences of a message."""
WORDS = {"en": 120, "zh": 220}
"""Longest message, in words; of Chinese, in characters. Longer ones are asked for again, then cut."""
MAX_TOKENS = 200
ECHO = 0.5
"""Share of a message's four-word runs from which it counts as taken from the companion, or as said before."""


class LlmActor:
    """Plays one person in one conversation.

    Args:
        client: Whom to ask.
        seed: The conversation's seed.
    """

    waits = True
    written = "actor"
    """Name of the prompt."""

    def __init__(self, client: LlmClient, seed: int = 0) -> None:
        self.id = f"llm:{short_name(client.models.of('actor'))}+actor-{prompt('actor', 'en').version}"
        self._client, self._seed = client, seed
        self._max_tokens = unless_set(client.models.of("actor"), "max_tokens", MAX_TOKENS)

    async def speak(self, view: ActorView) -> str:
        """Return the person's next message.

        Raises:
            LlmFailure: There is none, or twice none that a person would say.
        """
        language, words = view.profile.language, phrases(view.profile.language)
        messages = await self._messages(view)
        said = await self._ask(view, messages)
        if wrong := fault(said, view):
            again = ChatMessage("user", words.again.format(wrong=words.wrong[wrong]))
            said = await self._ask(view, (*messages, ChatMessage("assistant", said or "..."), again))
            wrong = fault(said, view)
        if wrong == "long":
            return shortened(said, language)
        if wrong and wrong != "repeated":  # people do say a thing twice
            raise LlmFailure(f"nothing that a person would say: {phrases('en').wrong[wrong]}", kind="check", attempts=2)
        return said

    async def _messages(self, view: ActorView) -> tuple[ChatMessage, ...]:
        return prompt(self.written, view.profile.language).render(**shown(view))

    async def _ask(self, view: ActorView, messages: tuple[ChatMessage, ...]) -> str:
        answer = await self._client.ask(
            Ask(
                role="actor",
                messages=messages,
                prompt=prompt(self.written, view.profile.language).key,
                seed=(self._seed + len(view.history)) % 2**31,
                max_tokens=self._max_tokens,
                may_be_cut=True,
            )
        )
        return cleaned(answer.text, view.profile.persona.name, view.profile.language)


def actor_of(name: str) -> Callable[[int], LlmActor]:
    """Return what builds a conversation's actor: "llm:MODEL", or "llm:" and a models file."""
    client = client_of(name)
    return lambda seed: LlmActor(client, seed)


def shown(view: ActorView) -> dict[str, str]:
    """Return what the model is shown, by placeholder."""
    profile, language = view.profile, view.profile.language
    words = phrases(language)
    return {
        "person": f"{card(profile.persona, profile.situation, language)}\n{words.opens[profile.patience]}",
        "touchy": "\n".join(profile.touchy),
        "life": "\n".join(line.say for item, line in profile.lines if chapter_of(item) in STAGES),
        "before": " / ".join(cut(e.user, 60) for e in view.history[:-WINDOW][-20:]),
        "talk": talk(view.history[-WINDOW:], language, LONGEST),
        "direction": cut(view.cue.words, 300),
        "material": "\n".join(material(view)),
        "task": _task(view),
    }


def _task(view: ActorView) -> str:
    return phrases(view.profile.language).tasks[view.cue.act if view.history else "open"]


def material(view: ActorView) -> tuple[str, ...]:
    """Return the sentences that the cue hands over: lines of the story, of a need, or last words."""
    profile = view.profile
    if not view.history:
        return tuple(line.say for item, line in profile.lines if item == "opening")
    if view.cue.act == "close":
        return profile.closing
    says = {item: line.say for item, line in profile.lines} | _hopes(profile)
    return tuple(says[item] for item in view.cue.lines if item in says)


def _hopes(profile: ActorProfile) -> dict[str, str]:
    return {f"need{rank}.{k}": say for rank, says in enumerate(profile.hopes) for k, say in enumerate(says)}


_STAGED = re.compile(
    r"\*[^*\n]{1,80}\*|\([^()\n]{1,80}\)|\[[^\[\]\n]{1,80}\]|\uff08[^\uff08\uff09\n]{1,60}\uff09"
    r"|\u3010[^\u3010\u3011\n]{1,60}\u3011"
)
_PAIRS = {'"': '"', "\u201c": "\u201d", "\u300c": "\u300d", "\u2018": "\u2019"}
_ENDS = r".!?\u2026\u3002\uff01\uff1f"
_SENTENCE = re.compile(rf"[^{_ENDS}]*[{_ENDS}]+[\"'\u201d\u2019\u300d)]*\s*|\S[^{_ENDS}]*$")


def cleaned(text: str, name: str, language: str) -> str:
    """Return what is spoken of an answer: no speaker before it, no other speaker's words, no stage directions."""
    words = phrases(language)
    names = (name, name.split()[0], words.person, words.companion, "User", "Assistant", "Me")
    speaker = rf"(?:{'|'.join(map(re.escape, names))})\s*[:\uff1a]"
    said = re.sub(rf"^\s*{speaker}\s*", "", text, flags=re.IGNORECASE)
    said = re.split(rf"\n\s*{speaker}", said, maxsplit=1, flags=re.IGNORECASE)[0]
    said = " ".join(_STAGED.sub(" ", said).split())
    if len(said) > 1 and _PAIRS.get(said[0]) == said[-1] and said[0] not in said[1:-1]:
        said = said[1:-1].strip()
    return said


ASSISTANT = re.compile(
    r"\bas an ai\b|\b(?:language model|ai assistant|chatbot)\b|\bhow (?:can|may) i (?:help|assist)\b"
    r"|\bi'?m here (?:to (?:help|listen|support)|for you)\b|\bfeel free to\b|\bi(?:'d be| am|'m) happy to help\b"
    r"|\b(?:is there )?anything else i can (?:help|do)\b|\bas (?:the|this) (?:person|character)\b|\bin this role\b"
    r"|作为(?:一个|一名)?(?:ai|人工智能|语言模型|助手)|语言模型|人工智能助手|有什么(?:我)?可以帮|我(?:会)?(?:一直)?在这里(?:陪|倾听|支持)"
    r"|很高兴为您|扮演",
    re.IGNORECASE,
)
"""What assistants say, and people who came to be heard do not."""
Wrong = Literal["", "empty", "assistant", "prompt", "echo", "repeated", "long"]


def fault(said: str, view: ActorView) -> Wrong:
    """Return what is wrong with a message that no person would say here; "" where it will do."""
    language = view.profile.language
    if not tokens(said):
        return "empty"
    if ASSISTANT.search(said):
        return "assistant"
    orders = f"{prompt('actor', language).sections[0].content}\n{_task(view)}"
    if "<data" in said or "</data" in said or shared_runs(said, orders) > ECHO:
        return "prompt"
    reply = view.history[-1].reply if view.history else ""
    if shared_runs(said, reply) > ECHO or said.casefold() == reply.strip().casefold():
        return "echo"
    if any(said.casefold() == e.user.casefold() for e in view.history):
        return "repeated"
    if len(tokens(said)) > WORDS[language] or len(_SENTENCE.findall(said)) > 2 * SENTENCES:
        return "long"
    return ""


def shortened(said: str, language: str) -> str:
    """Return the first sentences of a message that was too long twice."""
    kept = "".join(_SENTENCE.findall(said)[:SENTENCES]).strip()
    return kept if len(tokens(kept)) <= WORDS[language] else cut(kept, (6 if language == "en" else 1) * WORDS[language])
