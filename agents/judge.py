"""The EPM judge as a language model: it quotes the reply and picks anchors; pure functions make levels of that.

Echo-N1 section 4.3.2: first find all evidence for and against, then match it against behavioural anchors, then map it
by fixed rules. An anchor's id holds its axis, direction and level ("A.neg.1.rushes"), so the model gives no number at
all, and none can disagree with its evidence. Every quote must stand in the reply, or the judgement is refused.

What a turn costs stays flat. The model sees the last exchanges and, for what was before, the summary that it wrote
itself with its last verdict. Where there is none (after failures, say), a digest of the older messages stands in.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from typing import Annotated, Literal, cast, get_args

from pydantic import BaseModel, Field

from echo_env.agents.gated import GatedJudge
from echo_env.agents.llm.asks import Ask
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.agents.llm.forms import at_most, beginning
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llm.rolemodels import short_name, unless_set
from echo_env.agents.people import card, needs, phrases, things
from echo_env.agents.transcript import cut, shared_runs, talk
from echo_env.roles import Exchange, JudgeView
from echo_env.types import AXES, Axis, Evidence, Judgement, Levels

WINDOW = 3
"""Exchanges before the newest that are shown in their own words. Over 30 turns of like length six would take 37 %
of what the whole history takes, three take 19 % (`benchmarks/judge_tokens.py`)."""
LONGEST = 600
"""Characters of a message in that window."""
SUMMARY_WORDS = 80
"""Longest summary, in words; of Chinese, twice as many characters."""
DIGEST = 480
"""Characters of the digest that stands in for a summary."""
REPEATED = 0.8
"""Share of a sentence's four-word runs that an earlier reply holds, from which it counts as said before."""

MOST_QUOTES = 24
"""Sentences of a reply that are listed to be quoted."""

AnchorId = Literal[
    "C.prog.1.reflects", "C.prog.2.reframes", "C.prog.2.connects", "C.prog.2.meets",
    "C.neg.1.ignores", "C.neg.1.hollow", "C.neg.1.parrots", "C.neg.1.overlooks",
    "C.neg.2.misreads", "C.neg.2.gaslights",
    "A.prog.1.names", "A.prog.1.validates", "A.prog.2.unspoken", "A.prog.2.deepens", "A.prog.2.meets",
    "A.neg.1.mismatch", "A.neg.1.overlooks", "A.neg.1.performs", "A.neg.1.cold", "A.neg.1.rushes",
    "A.neg.1.minimises", "A.neg.1.circles", "A.neg.2.judges", "A.neg.2.repeats",
    "P.prog.1.affirms", "P.prog.1.advises", "P.prog.2.empowers", "P.prog.2.meets",
    "P.neg.1.preaches", "P.neg.1.flatters", "P.neg.1.overlooks", "P.neg.2.denies",
]  # fmt: skip
"""The anchors of the rubric `epm_v1`, but for those of the safety gate, which stands beside every judge."""
ANCHORS: tuple[str, ...] = get_args(AnchorId)


class Finding(BaseModel):
    """One piece of evidence, as the model gives it."""

    quote: Annotated[str, beginning(300), Field(max_length=300, description="Words of the reply, verbatim.")]
    reason: Annotated[str, at_most(240), Field(max_length=240, description="Why, with a fact of this person.")]
    anchor: AnchorId
    item: Annotated[str, at_most(40), Field(max_length=40, description="Id of the thing it serves, or empty.")] = ""


class Verdict(BaseModel):
    """What the model answers."""

    evidence: Annotated[tuple[Finding, ...], Field(max_length=8)]
    summary: Annotated[str, at_most(900), Field(max_length=900, description="The talk so far, for your next turn.")]


class BriefFinding(Finding):
    """The same in fewer words."""

    reason: Annotated[str, at_most(80), Field(max_length=80, description="Why, with a fact of this person.")]


class BriefVerdict(Verdict):
    """What a model answers that may not say much, a small one for example: two findings at most."""

    evidence: Annotated[tuple[BriefFinding, ...], Field(max_length=2)]
    summary: Annotated[str, at_most(240), Field(max_length=240, description="The talk so far, for your next turn.")]


BRIEF = 600
"""Tokens of an answer below which the brief form is asked for."""


class LlmJudge:
    """Judges one conversation. Give each its own: it keeps its summary.

    Args:
        client: Whom to ask.
        draw: Number of the draw, to ask the same again.
    """

    waits = True

    def __init__(self, client: LlmClient, draw: int = 0) -> None:
        model, written = client.models.of("judge"), prompt("judge", "en")
        self.id = f"llm:{short_name(model)}+judge-{written.version}"
        self.rubric = f"epm_llm_{written.version}"
        self._client, self._draw = client, draw
        self._temperature = unless_set(model, "temperature", 0.0)  # a judge rolls no dice unless it is told to
        self._max_tokens = unless_set(model, "max_tokens", 1024)
        self._form = BriefVerdict if (self._max_tokens or model.max_tokens) < BRIEF else Verdict
        self._summary, self._covers = "", 0

    async def judge(self, view: JudgeView) -> Judgement:
        """Return evidence and the levels that follow from it.

        Raises:
            LlmFailure: There is no usable verdict.
        """
        language, reply = view.profile.language, view.exchange.reply
        written = prompt("judge", language)
        older, recent = self.past(view)
        opens = phrases(language).opens["low" if view.profile.threshold == "high" else "high"]
        messages = written.render(
            person=f"{card(view.profile.persona, view.profile.situation, language)}\n{opens}",
            needs=needs(view.profile.needs, language),
            things=things(view.profile.lines, language),
            older=older,
            recent=recent,
            message=view.exchange.user,
            repeated="\n".join(repeated(reply, view.history)),
            reply=reply,
        )
        answer = await self._client.ask(
            Ask(
                role="judge",
                messages=messages,
                prompt=written.key,
                schema=self._form,
                choices={"quote": quotable(reply)},
                seed=0,
                temperature=self._temperature,
                max_tokens=self._max_tokens,
                draw=self._draw,
                check=lambda verdict: wrong(verdict, reply),
            )
        )
        verdict = cast(Verdict, answer.parsed)
        self._summary, self._covers = short(verdict.summary, language), len(view.history) + 1
        evidence = evidence_of(verdict.evidence, reply, {item for item, _ in view.profile.lines})
        return Judgement(
            levels=levels_of(evidence),
            evidence=evidence,
            judge=self.id,
            reasoning=answer.thinking,
            summary=self._summary,
            usage=answer.usage,
        )

    def recall(self, judgement: Judgement, turns: int) -> None:
        """Take up the summary that was written with an earlier judgement, of a recorded conversation."""
        self._summary, self._covers = judgement.summary, turns

    def past(self, view: JudgeView) -> tuple[str, str]:
        """Return what the model is shown of the conversation before the newest exchange: older, and recent.

        A summary serves as long as the window still holds every exchange that it does not cover.
        """
        older, recent = view.history[:-WINDOW], view.history[-WINDOW:]
        known = self._summary and len(older) <= self._covers <= len(view.history)
        return (self._summary if known else digest(older)) if older else "", talk(
            recent, view.profile.language, LONGEST
        )


def judge_of(name: str) -> Callable[[], GatedJudge]:
    """Return what builds a conversation's judge: "llm:MODEL", or "llm:" and a models file."""
    client = client_of(name)
    return lambda: GatedJudge(LlmJudge(client))


def levels_of(evidence: Iterable[Evidence]) -> Levels:
    """Return the levels that evidence gives: on each axis the highest for the good and the lowest for the bad."""
    prog, neg = dict.fromkeys(AXES, 0), dict.fromkeys(AXES, 0)
    for e in evidence:
        prog[e.axis], neg[e.axis] = max(prog[e.axis], e.level), min(neg[e.axis], e.level)
    return Levels(prog["C"], neg["C"], prog["A"], neg["A"], prog["P"], neg["P"])


def evidence_of(findings: Iterable[Finding], reply: str, items: set[str]) -> tuple[Evidence, ...]:
    """Return findings as evidence, each quote in the reply's own words; an item that the profile lacks is dropped."""
    evidence = []
    for f in findings:
        axis, direction, level, _ = f.anchor.split(".")
        evidence.append(
            Evidence(
                axis=cast(Axis, axis),
                direction="prog" if direction == "prog" else "neg",
                level=int(level) if direction == "prog" else -int(level),
                anchor=f.anchor,
                quote=found_in(f.quote, reply) or "",
                item=f.item if f.item in items else "",
                reason=f.reason,
            )
        )
    return tuple(evidence)


def quotable(reply: str) -> tuple[str, ...]:
    """Return what a model held to its form may quote: the reply's sentences; nothing where they are too many."""
    sentences = tuple(dict.fromkeys(s for s in _sentences(reply) if len(s) <= 300)) if reply.strip() else ("",)
    return sentences if len(sentences) <= MOST_QUOTES else ()


def wrong(verdict: BaseModel, reply: str) -> str:
    """Return what is wrong with a verdict, in words for the model; "" where nothing is."""
    unfound = [k for k, f in enumerate(cast(Verdict, verdict).evidence, 1) if found_in(f.quote, reply) is None]
    if unfound:
        return f"quote {unfound[0]} does not stand in the reply; copy the reply's words exactly, or leave it out"
    return ""


def found_in(quote: str, reply: str) -> str | None:
    """Return a quote in the reply's own words, or None where it does not stand there.

    Space, case, width, invisible characters and the kind of quotation marks do not matter. An empty quote stands in an
    empty reply alone.
    """
    if not reply.strip():
        return None if _plain(quote)[0].strip(_EDGE) else ""
    wanted = _plain(quote)[0].strip(_EDGE)
    text, places = _plain(reply)
    at = text.find(wanted) if wanted else -1
    return reply[places[at] : places[at + len(wanted) - 1] + 1] if at >= 0 else None


_EDGE = ' ".'
_QUOTES = "'\u2018\u2019\u201c\u201d\u300c\u300d\u00ab\u00bb`"
_MARKS = dict.fromkeys(map(ord, _QUOTES), '"') | {0x2013: "-", 0x2014: "-"}


def _plain(text: str) -> tuple[str, list[int]]:
    """Return a text as quotes are compared, and where each of its characters stood."""
    kept: list[str] = []
    places: list[int] = []
    for k, raw in enumerate(text):
        for c in unicodedata.normalize("NFKC", raw).casefold().translate(_MARKS):
            c = " " if c.isspace() else c
            if unicodedata.category(c) in ("Cc", "Cf"):
                continue
            if c != " " or (kept and kept[-1] != " "):
                kept.append(c)
                places.append(k)
    return "".join(kept), places


def repeated(reply: str, history: Iterable[Exchange], most: int = 3) -> list[str]:
    """Return the reply's sentences that an earlier reply held already: older ones are out of the model's sight."""
    earlier = [e.reply for e in history]
    sentences = [s for s in _sentences(reply) if any(shared_runs(s, text) >= REPEATED for text in earlier)]
    return [cut(s, 160) for s in sentences[:most]]


def _sentences(text: str) -> list[str]:
    for mark in ".!?\u3002\uff01\uff1f":
        text = text.replace(mark, mark + "\n")
    return [s.strip() for s in text.splitlines() if s.strip()]


def short(summary: str, language: str) -> str:
    """Return a summary of bounded length."""
    if language == "zh":
        return cut(summary, 2 * SUMMARY_WORDS)
    return cut(" ".join(summary.split()[:SUMMARY_WORDS]), 8 * SUMMARY_WORDS)


def digest(history: Iterable[Exchange]) -> str:
    """Return the beginnings of the person's messages, the latest ones that fit: what stands in for a summary."""
    lines: list[str] = []
    room = DIGEST
    for number, exchange in reversed(list(enumerate(history, 1))):
        line = f"{number}. {cut(exchange.user, 70)}"
        if len(line) > room:
            break
        room -= len(line)
        lines.append(line)
    return "\n".join(reversed(lines))
