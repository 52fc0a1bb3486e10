"""The embedded director: seven functions, one call a turn (Echo-N1 section 4.3.2).

It alone sees the EPM state. It steers what the person brings up next towards the axis that still lacks most, lets them
hold back after a reply that went wrong, and lets a need show where the companion keeps missing it. What it hands
to the actor is lines of the story and plain words; no number and no axis.
"""

from __future__ import annotations

from typing import Literal

from echo_env.profiles import STAGES, Line
from echo_env.roles import DirectorView, chapter_of
from echo_env.types import AXES, Axis, Direction, Function

HINT_EVERY = 4
"""Turns between two hints at an unmet need."""
LEAVES_AFTER = 8
"""Turns in a row in which nothing was found for the good, after which a person who is far from well leaves."""
HALFWAY = 0.55
"""Share of the way left below which the turning point may come."""
STRATEGY_OF: dict[Axis, Literal["cognitive", "affective", "motivational"]] = {
    "C": "cognitive",
    "A": "affective",
    "P": "motivational",
}
COURSE = ("beat1", "now", "beat2", "young_adult", "beat3", "childhood", "teens", "beat4", "turn")
"""Order in which chapters come up where nothing speaks against it."""
CHAT_COURSE = ("beat1", "now", "beat2", "teens", "beat3", "young_adult", "childhood", "beat4", "turn")
"""The same for chit-chat, where no chapter needs more trust than another."""
_SERVES: dict[Axis, tuple[str, str]] = {"C": ("belief", "fact"), "A": ("feeling", ""), "P": ("wish", "strength")}


class EmbeddedDirector:
    """Directs one conversation by stated rules; no randomness. Give each conversation its own."""

    id = "embedded-1"

    def __init__(self) -> None:
        self._untold: dict[str, list[tuple[str, Line]]] = {}
        self._current = "beat1"
        self._heard = 0
        self._waited = False

    async def direct(self, view: DirectorView) -> Direction:
        """Pick the next call."""
        self._catch_up(view)
        return self._chat(view) if view.scenario.chitchat else self._pick(view)

    def _catch_up(self, view: DirectorView) -> None:
        """Strike out the lines that the person has said since the last call."""
        if not self._untold:
            for item, line in view.scenario.items():
                self._untold.setdefault(chapter_of(item), []).append((item, line))
        for exchange in view.history[self._heard :]:
            for chapter, lines in self._untold.items():
                told = [entry for entry in lines if entry[1].say in exchange.user]
                for entry in told:
                    lines.remove(entry)
                if told and chapter != "opening":
                    self._current = chapter
        self._heard = len(view.history)

    def _chat(self, view: DirectorView) -> Direction:
        """Where nothing lacks, let the story be told in its order."""
        left = [c for c in CHAT_COURSE if self._untold[c]]
        if not left:
            return Direction(function="continue_naturally", words="Chat on.", reason="story told")
        function, argument, event = _call(view, left[0])
        lines = tuple(item for item, _ in self._untold[left[0]])
        return Direction(
            function=function, argument=argument, words=f"Bring up: {event}", lines=lines, reason=f"{left[0]} is next"
        )

    def _pick(self, view: DirectorView) -> Direction:
        turn = len(view.history)
        last = view.judgements[-1]
        harmed = last is not None and sum(last.levels) < 0
        if harmed and not self._waited:
            self._waited = True
            return Direction(
                function="observe_and_wait", words="That did not land. Hold back and see.", reason="net harm"
            )
        self._waited = False
        barren = [j is not None and not any(j.levels[::2]) for j in view.judgements[-LEAVES_AFTER:]]
        if turn >= max(LEAVES_AFTER, view.min_turns) and all(barren) and _way_left(view) > HALFWAY:
            return Direction(
                function="end_conversation", words="This leads nowhere. Leave.", reason=f"{LEAVES_AFTER} barren turns"
            )
        lacking = _lacking(view)
        if turn % HINT_EVERY == HINT_EVERY - 1 and _unmoved(view, lacking):
            return self._hint(view, lacking, f"axis {lacking} has not moved for {HINT_EVERY} turns")
        open_chapters = [c for c in COURSE if self._untold.get(c)]
        if "turn" in open_chapters and turn >= 6 and _way_left(view) < HALFWAY:
            return self._reveal(view, "turn", lacking, "nearly half of the way is done")
        open_chapters = [c for c in open_chapters if c != "turn"] or open_chapters
        if turn % 2 and not any(self._worth(c, lacking) for c in open_chapters):
            left = _left_lying(view, lacking)
            if left:
                words = "Come back to what nobody took up."
                return Direction(function="continue_naturally", words=words, lines=left, reason=f"unmet on {lacking}")
        if not open_chapters:
            if turn % 2:
                return self._hint(view, lacking, "the story is told")
            return Direction(function="continue_naturally", words="Stay with what has been said.", reason="story told")
        if self._current in open_chapters and self._worth(self._current, lacking):
            return self._reveal(view, self._current, lacking, f"{self._current} goes on")
        useful = [c for c in open_chapters if self._worth(c, lacking)]
        return self._reveal(view, (useful or open_chapters)[0], lacking, f"serves {lacking}")

    def _hint(self, view: DirectorView, axis: Axis, reason: str) -> Direction:
        rank = next(r for r, n in enumerate(view.scenario.needs) if n.axis == axis)
        return Direction(
            function="adjust_empathy_strategy",
            argument=STRATEGY_OF[axis],
            words="Let it show what you miss in this talk.",
            lines=tuple(f"need{rank}.{k}" for k in range(len(view.scenario.needs[rank].asks))),
            reason=reason,
        )

    def _reveal(self, view: DirectorView, chapter: str, lacking: Axis, reason: str) -> Direction:
        lines = sorted(self._untold[chapter], key=lambda il: -_value(il[1], lacking))
        function, argument, event = _call(view, chapter)
        words = f"Bring up: {event}"
        if chapter == self._current:
            function, argument, words = "continue_naturally", "", "Go on where you are."
        return Direction(
            function=function, argument=argument, words=words, lines=tuple(i for i, _ in lines), reason=reason
        )

    def _worth(self, chapter: str, axis: Axis) -> float:
        return sum(_value(line, axis) for _, line in self._untold[chapter])


def _call(view: DirectorView, chapter: str) -> tuple[Function, str, str]:
    """The function that reveals a chapter, its argument, and what happens in the chapter."""
    if chapter in STAGES:
        return "reveal_memory", chapter, view.scenario.life[chapter].event
    if chapter == "turn":
        return "introduce_turning_point", "", view.scenario.turning_point.event
    number = chapter.removeprefix("beat")
    return "reveal_fragment", number, view.scenario.beats[int(number) - 1].event


def _value(line: Line, axis: Axis) -> float:
    """What a line offers on an axis: 3 for what moves most, 1 for what moves a little, else 0."""
    if axis == "A":
        return 0.0 if line.feeling is None else 1.0 if line.kind == "feeling" else 3.0
    most, some = _SERVES[axis]
    return 3.0 if line.kind == most else 1.0 if line.kind == some else 0.0


def _left_lying(view: DirectorView, axis: Axis) -> tuple[str, ...]:
    """The told lines that offer something on an axis and that no reply has met there, longest waiting first."""
    met = {e.item for j in view.judgements if j for e in j.evidence if e.axis == axis and e.level > 0}
    said = [e.user for e in view.history]
    told = {
        item: next((k for k, user in enumerate(said) if line.say in user), -1) for item, line in view.scenario.items()
    }
    lying = [(told[i], i) for i, line in view.scenario.items() if told[i] >= 0 and i not in met and _value(line, axis)]
    return tuple(i for _, i in sorted(lying))


def _position(view: DirectorView) -> tuple[float, float, float]:
    return next((d.position for d in reversed(view.epm) if d is not None), view.p0)


def _lacking(view: DirectorView) -> Axis:
    position = _position(view)
    return AXES[min(range(3), key=lambda k: position[k])]


def _way_left(view: DirectorView) -> float:
    square = sum(min(0.0, x) ** 2 for x in _position(view))
    return float((square / sum(x * x for x in view.p0)) ** 0.5)


def _unmoved(view: DirectorView, axis: Axis) -> bool:
    k = AXES.index(axis)
    return all(j.levels[2 * k] == 0 for j in view.judgements[-HINT_EVERY:] if j is not None)
