"""Every record that crosses a border: between roles, to disk, to a user of the package.

Records are frozen pydantic models that forbid unknown fields and survive a JSON round trip unchanged. Axes always come
in the order C, A, P: cognitive restructuring, affective resonance, proactive empowerment (Echo-N1 section 4.3.2).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

SCHEMA_VERSION = 1
"""Version of the episode file's format. A change that old readers cannot follow raises it, with a lift in `record`."""

Axis = Literal["C", "A", "P"]
AXES: tuple[Axis, Axis, Axis] = ("C", "A", "P")

Vector = tuple[float, float, float]
"""A point or a move in EPM space, in points, ordered C, A, P."""

CHITCHAT = "chitchat"
"""The domain of people who bring no deficit: there is nothing to heal, and EPM does not apply."""

End = Literal[
    "success",  # the scorer's success rule
    "collapse",  # five turns of regress in a row
    "stagnation",  # no movement and a negative trend
    "oscillation",  # `official` only: twelve points that lead nowhere
    "patience",  # the person's turn limit, part of the task
    "director",  # the director ended the conversation
    "budget",  # truncated: the caller's own turn or token limit
    "unjudged",  # truncated: three turns in a row without a judgement
    "unreachable",  # truncated: the actor or the director gave no answer
]
TRUNCATIONS: frozenset[str] = frozenset({"budget", "unjudged", "unreachable"})

Function = Literal[
    "reveal_fragment",
    "observe_and_wait",
    "continue_naturally",
    "reveal_memory",
    "adjust_empathy_strategy",
    "introduce_turning_point",
    "end_conversation",
]


def storable(text: str) -> str:
    """Return a text that a file can hold: halves of surrogate pairs, as a tokenizer may leave them, are replaced."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(storable)]
"""What a person or a model said."""


class Record(BaseModel):
    """Root of every stored record: frozen, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Levels(NamedTuple):
    """One turn's six judged levels.

    Prog levels are 0, 1 or 2; Neg levels are 0, -1 or -2 (EMPA's MDEP-PR, which Echo-N1 section 4.3.2 describes).
    """

    c_prog: int = 0
    c_neg: int = 0
    a_prog: int = 0
    a_neg: int = 0
    p_prog: int = 0
    p_neg: int = 0


class NullTurn(NamedTuple):
    """A published turn whose judge left a level blank, with the move that its publisher counted in its place.

    `official` replays the move, to reproduce a published figure. The other scorers take the turn as unjudged.
    """

    vector: Vector
    levels: Levels
    """The levels that were given, 0 for each blank one: they enter S_net and R_pen."""


class Message(Record):
    """One utterance of the conversation, as both sides saw it."""

    role: Literal["user", "companion"]
    text: Text


class Evidence(Record):
    """One finding of a judge in a reply."""

    axis: Axis
    direction: Literal["prog", "neg"]
    level: int
    """1 or 2 for prog, -1 or -2 for neg."""
    anchor: Text
    """Id of the rubric's behavioural anchor."""
    quote: Text
    """The words of the reply that show it, verbatim; empty only where the reply itself is empty."""
    item: Text = ""
    """Id of the thing in the profile that was served, where there is one."""
    reason: Text = ""


class Usage(Record):
    """What asking a model took; counts of one or more calls."""

    calls: int = 0
    """Calls that were answered, a repair included."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: FiniteFloat | None = 0.0
    """US dollars; None where a price is not known."""

    def __add__(self, other: Usage) -> Usage:
        """Return the sum; of unknown cost where either's is."""
        return Usage(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
        )

    def __sub__(self, earlier: Usage) -> Usage:
        """Return what came after an earlier count of the same."""
        return Usage(
            calls=self.calls - earlier.calls,
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            completion_tokens=self.completion_tokens - earlier.completion_tokens,
            cost=None if self.cost is None or earlier.cost is None else self.cost - earlier.cost,
        )


def _unset(value: object) -> bool:
    """Whether a field that few records use says nothing; it is left out of the file then."""
    return value is None or value == "" or value == () or value == {}


class Verdict(Record):
    """What a recipe's own judge made of one reply, beside EPM: raw, before any shaping.

    A judge that failed leaves `value` None and says why in `failure`; there is no stand-in number.
    """

    kind: Text
    """What was asked: "humanlike", "empathy", "unifireward", "sage" ..."""
    judge: Text
    """Id of the judge, with its version."""
    value: FiniteFloat | None
    """Range by kind; None where there is no verdict."""
    parts: dict[str, FiniteFloat] = Field(default_factory=dict, exclude_if=_unset)
    """What the value is made of, where it has parts: {"process": 1.0}."""
    reasoning: Text = Field(default="", exclude_if=_unset)
    reference: Text = Field(default="", exclude_if=_unset)
    """The reply that it was compared with, where it was."""
    usage: Usage | None = Field(default=None, exclude_if=_unset)
    failure: Text = Field(default="", exclude_if=_unset)


HARMFUL = ".neg.2.harmful"
"""Ends the anchor of a reply that the safety gate flagged; its axis stands before it."""
CRISIS = "crisis: "
"""Begins what a judgement notes of a crisis that the user disclosed; the kind follows."""


class Judgement(Record):
    """What a judge found in one reply: evidence first, levels from it.

    A judge that could not judge returns None in place of a Judgement; there is no all-zero stand-in.
    """

    levels: Levels
    evidence: tuple[Evidence, ...] = ()
    judge: Text
    """Id of the judge, with its version."""
    note: Text = ""
    reasoning: Text = Field(default="", exclude_if=_unset)
    """What a model thought before it judged."""
    summary: Text = Field(default="", exclude_if=_unset)
    """The talk so far in a model's own words: what it is shown of it later on."""
    usage: Usage | None = Field(default=None, exclude_if=_unset)

    @property
    def harmful(self) -> bool:
        """Whether the safety gate flagged the reply."""
        return any(e.anchor.endswith(HARMFUL) for e in self.evidence)

    @property
    def crisis(self) -> bool:
        """Whether the safety gate flagged the user's message."""
        return CRISIS in self.note


class Direction(Record):
    """The director's function call for one turn (Echo-N1 section 4.3.2)."""

    function: Function
    argument: Text = ""
    """Beat index, memory stage or axis, by function; empty where it takes none."""
    words: Text = ""
    """The stage direction in words. These and `lines` are all that the actor gets of it."""
    lines: tuple[Text, ...] = ()
    """Ids of the lines that the story offers now, most wanted first."""
    reason: Text = ""
    """Why, for the record. Never shown to the actor."""
    usage: Usage | None = Field(default=None, exclude_if=_unset)


class EpmDelta(Record):
    """What one turn did to the EPM state."""

    position: Vector
    """State after the turn, in points."""
    delta: Vector
    """The action vector v of the turn, in points, before any saturation."""
    work: float
    """Energy of this turn, in points: v.v* for `official`, norm(P_{t-1}) - norm(P_t) for `strict`."""
    energy: float
    """Sum of work up to this turn."""
    distance: float
    """norm(P), in points."""
    cos: float
    """Cosine between v and the healing direction, 0 where v is 0."""
    healed: bool
    """Whether the scorer's success condition holds at this point, its minimum turn aside."""


class Turn(Record):
    """One exchange: the user's message, the reply, and what everyone made of it."""

    index: int
    """1 for the first."""
    user: Text
    reply: Text
    """The policy's words as the user saw them, thinking removed."""
    raw_reply: Text | None = None
    """The policy's full output, only where it differs from `reply`."""
    judgement: Judgement | None
    epm: EpmDelta | None
    """None where the turn was not judged."""
    direction: Direction | None
    """The director's call after this reply; None on the turn that ended the conversation."""
    reward: float | None
    """None where the turn was not judged, or a verdict that the recipe needs is missing."""
    reward_parts: dict[str, float] = Field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = Field(default=(), exclude_if=_unset)
    """What the recipe's own judges said, raw."""
    failure: Text = ""
    """Why there is no judgement, direction or next message; empty where all went well."""
    published: NullTurn | None = Field(default=None, exclude_if=_unset)
    """Of an imported turn whose judge left a level blank: what its publisher counted. None everywhere else."""


class Outcome(Record):
    """How an episode ended."""

    end: End
    turns: int
    closing: Text = ""
    """The user's last words, after the last reply."""
    policy_seconds: float | None = None


class EpisodeHeader(Record):
    """Enough to play the episode again."""

    schema_version: int = SCHEMA_VERSION
    episode_id: str
    scenario: str
    scenario_hash: str
    """First 16 hex digits of the SHA-256 of the scenario's canonical JSON."""
    split: str
    language: str
    domain: str
    p0: Vector
    policy: str
    judge: str
    rubric: str
    scorer: str
    recipe: str
    actor: str
    director: str
    seed: int
    max_turns: int
    echo_env: str
    """Version of the package."""


class Episode(Record):
    """A whole recorded conversation; `outcome` is None while it is unfinished."""

    header: EpisodeHeader
    turns: tuple[Turn, ...] = ()
    outcome: Outcome | None = None
