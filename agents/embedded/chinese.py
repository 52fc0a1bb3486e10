"""Reading Chinese: where words end, what a sentence is about, and vectors of its characters.

There are no spaces to go by and no word list of the language: a text is cut at the longest words that the lexicon knows
(function words, feelings, people), and what is left are single characters. What a sentence is about is told by pairs of
neighbouring characters. Vectors are hashed runs of one to three characters; they know no synonyms.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Sequence, Set
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Vec = NDArray[np.float32]
MOST_RUNS = 1 << 18
"""Runs whose places are kept."""
DIM = 1024
"""Width of the vectors of `CharacterRuns`."""
LONGEST_RUN = 3
"""Characters of the longest run that a vector counts."""
CLAUSE = re.compile(r"[，,、：:；;。！!？?…”—（）()\s]+")
FIRST, SECOND = frozenset({"我", "我们", "俺", "咱"}), frozenset({"你", "您", "你们"})

# --- what the embedded roles look for with regular expressions, beside the cues in sim_profiles

QUESTION = re.compile(r"(?:[？?]|[吗呢]。?)[\"”』」）)\s]*$")
ASKING = re.compile(r"\W*(?:那|所以)?(?:你|您)?(?:是不是|有没有|会不会|什么|怎么|为什么|谁|哪|几时).*[？?]\W*$")
OWN_FEELING = re.compile(r"我(?:们|自己)?(?:很|真的?|好|也|都|太|非常|特别|觉得|感到|有点|有些|心里)+")
"""How a speaker begins who talks of their own feelings."""
DISOWNED = re.compile(r"我(?:们)?(?:不会|不想|不打算|没打算|绝不|可不|不是要|并不是)(?!是)")
"""How a speaker begins who says what they will not say."""
ASKS_ADVICE = re.compile(
    r"我(?:该|应该|到底该|能|要)(?:怎么|做什么|做些什么|从哪)|(?:给我|有没有|有什么)(?:什么|点|个|些)?(?:建议|办法|主意)"
    r"|教教我|帮帮我|帮我(?:想|出个|拿个)|你说我该"
)
BLAME_DENIED = re.compile(
    r"(?:不|没|没有|不是|别|哪里)[^，。！？]{0,3}$"
    r"|(?:他们?|她们?|别人|谁|人家)[^，。！？]{0,3}(?:说|觉得|以为|认为|骂|怪)[^，。！？]{0,4}$"
)
"""Before a word of blame: it is denied, or put in other people's mouths."""
SORRY = re.compile(r"抱歉|对不起|陪着你|陪你|抱抱|不是一个人")
QUOTED = re.compile(r"[\u201c\u300c\"][^\u201d\u300d\"]{2,160}[\u201d\u300d\"]")
REPORTED = re.compile(
    r"(?:他们?|她们?|人家|别人|有人|大家|谁|妈妈?|爸爸?|老板|领导|医生)[^，。！？；：]{0,8}"
    r"(?:说|骂|叫|喊|觉得|认为|以为|要)[^，。！？；]*"
    r"|你(?:说|说过|想过|觉得|以为|骂自己|想)[^，。！？；]*"
)
"""What a reply says that somebody said, thought or felt; `QUOTED` is what it quotes."""
PLACE = re.compile(r"，(?:在)?([\u4e00-\u9fff]{2,5}?)(?:人|某县|开店|带孙子)?(?=，|$)")
"""In a person's job, behind the job: "半挂车司机，宁夏中卫"."""
FAMILY_ASKED = (
    (re.compile(r"结婚|成家|离婚|单身|对象|伴侣|爱人"), ("wife", "husband", "partner")),
    (re.compile(r"孩子|儿子|女儿|子女|儿女"), ("son", "daughter")),
    (re.compile(r"兄弟|姐妹|哥哥|弟弟|姐姐|妹妹|独生"), ("brother", "sister")),
    (re.compile(r"父母|爸妈|妈妈|爸爸|母亲|父亲"), ("mother", "father")),
    (re.compile(r"宠物"), ("dog", "cat")),
)
LIVES_ASKED = re.compile(r"健在|在世|一起住|独居|一个人住")
WHO_ASKED = re.compile(
    r"^(?:那|那么)?([\u4e00-\u9fff]{2,4}?)(?:到底)?是(?:你的?)?(?:谁|什么人)[？?]|^谁是([\u4e00-\u9fff]{2,4})[？?]"
)
OPENERS = (
    "唉，", "总之，", "嗯，", "我还是想说，", "说实话，", "反正，", "怎么说呢，", "真的，", "再说一遍吧，", "其实，",
)  # fmt: skip
"""What a person puts before words that they have used already."""
AND = "，还有"
KIND_CUES = tuple(
    re.compile(pattern)
    for pattern in (
        r"我(就|只|还|也|真|多|很|最)*(想|希望|盼|巴不得|愿)(?!到|起|不|着|过|来)|要是能|要是有|但愿|有朝一日|哪怕.{0,6}也好",
        r"(想|希望|愿意|盼着).{0,8}(一次|一回|一天|一趟)|有一天|下次|以后我",
        r"(应该|本该|早该|不该|该)|都怪|怪我|要不是我|如果我|要是我|我的错|活该|配不上|不配",
        r"总是|从来|永远|没有人|没人|谁都|所有人|都是|只有|就得|必须|越.{1,4}越",
        r"(才|就)(是|算|叫)|说明|意味着|证明|不过是|等于|人就|这种人|本来就|注定",
        r"还是|一直|每(天|晚|年|个|次|周)|坚持|照样|从没(断|停|缺|迟)",
        r"学会|修好|做成|写完|教|熬|一个人(扛|带|做|把)|亲手|自己(做|修|学|写|缝|攒)|没(哭|倒|退|丢下)|守住|攒",
        r"说|告诉|打电话|发(来|了|给)|叫我|问我|通知|签|送|卖|搬",
        r"我(很|真|觉得|感到|好|太|也|有点)",
        r"他|她|他们|人家|我妈|我爸",
        r"[？?]",
    )
)
"""Where a sentence is likely to be a wish, a belief, a strength, a fact: signs for the companion's ear."""


def cutter(known: Iterable[str]) -> re.Pattern[str]:
    """Return what finds the tokens of a text: the longest known words, else numbers, Latin words, single characters."""
    by_length = sorted({w for w in known if len(w) > 1}, key=lambda w: (-len(w), w))
    return re.compile("|".join([*map(re.escape, by_length), rf"{_FOREIGN}(?:['.-]{_FOREIGN})*", r"[\u3400-\u9fff]"]))


_FOREIGN = r"[^\W_\u3400-\u9fff]+"


def owned(tokens: Sequence[str], by: frozenset[str] = SECOND) -> list[str]:
    """Return the tokens that a text calls somebody's own, the listener's by default: "你哥哥", "你的哥哥"."""
    found = []
    for i, token in enumerate(tokens):
        before = tokens[max(0, i - 2) : i]
        if before and (before[-1] in by or (before[-1] == "的" and before[0] in by)):
            found.append(token)
    return found


def is_character(token: str) -> bool:
    """Whether a token is a single Chinese character."""
    return len(token) == 1 and "\u3400" <= token <= "\u9fff"


def stems_of(clauses: Sequence[Sequence[str]], without: frozenset[str], whole: Set[str]) -> tuple[str, ...]:
    """Return what each token of a sentence is about; empty for tokens without content.

    A single character is about itself and the one behind it, the last of a run about the one before it and itself. A
    word that the lexicon knows is about itself.

    Args:
        clauses: The tokens, clause by clause: no pair reaches over a comma.
        without: Tokens without content.
        whole: Words of one character, which are about themselves.
    """
    found: list[str] = []
    for tokens in clauses:
        open_ = [is_character(t) and t not in without and t not in whole for t in tokens]
        for i, token in enumerate(tokens):
            if not open_[i]:
                found.append("" if token in without else token)
            elif i + 1 < len(tokens) and open_[i + 1]:
                found.append(token + tokens[i + 1])
            else:
                found.append(tokens[i - 1] + token if i and open_[i - 1] else token)
    return tuple(found)


def blanked(words: Sequence[str], stems: Sequence[str], vocabulary: frozenset[str]) -> list[bool]:
    """Return which tokens are part of a word of the story: either pair that a character stands in may be."""
    out = [s in vocabulary for s in stems]
    for i in range(1, len(words)):
        before = stems[i - 1]
        out[i] = out[i] or (before == words[i - 1] + words[i] and before in vocabulary)
    return out


def stretch(
    words: Sequence[str], stems: Sequence[str], own: Sequence[bool], openers: Set[str], longest: int
) -> tuple[int, str]:
    """Return the stretch of a clause that tells most, and how many of its tokens tell something.

    It begins and ends where a run of content does, and is as short as it can be.

    Args:
        words: The tokens of a clause.
        stems: What each is about.
        own: Whether that is something of this person's own.
        openers: Tokens that may stand before a run of content: "那张".
        longest: Characters that it may have.
    """
    starts = [i for i, s in enumerate(stems) if s and (i == 0 or not stems[i - 1])]
    ends = [i for i, s in enumerate(stems) if s and (i + 1 == len(stems) or not stems[i + 1])]
    best = (0, 0, "")
    for i in starts:
        for j in ends:
            text = "".join(words[i - (i > 0 and words[i - 1] in openers) : j + 1])
            if 2 <= len(text) <= longest:
                best = max(best, (sum(own[i : j + 1]), -len(text), text))
    return best[0], best[2]


def quoted_apart(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a text, and whether each stands in quotation marks."""
    parts, at = [], 0
    for found in QUOTED.finditer(text):
        parts += [(text[at : found.start()], False), (found.group(), True)]
        at = found.end()
    return [(part, quoted) for part, quoted in [*parts, (text[at:], False)] if part]


class CharacterRuns:
    """Hashed runs of one to three characters, as an `encoders.Encoder`: deterministic, and nothing to load."""

    name = "characters"
    dim = DIM

    def __init__(self) -> None:
        self._place_of: dict[str, tuple[int, float]] = {}

    def _place(self, run: str) -> tuple[int, float]:
        """Return where a run counts, and with which sign and weight."""
        known = self._place_of.get(run)
        if known is None:
            if len(self._place_of) > MOST_RUNS:
                self._place_of.clear()
            code = zlib.crc32(run.encode())
            known = self._place_of[run] = code % DIM, (1.0 if code & 1 << 20 else -1.0) * _WEIGHT[min(len(run), 3)]
        return known

    def summed(self, word: str) -> Vec:
        """Return a text's runs, counted, shape (1024,)."""
        vector = np.zeros(DIM, dtype=np.float32)
        for n in range(1, LONGEST_RUN + 1):
            for i in range(len(word) - n + 1):
                at, size = self._place(word[i : i + n])
                vector[at] += size
        return vector

    def encode(self, tokens: Sequence[str]) -> Vec:
        """Return the unit vector of a list of tokens, shape (1024,); zeros where there are none."""
        vector = self.summed("".join(tokens))
        length = math.sqrt(vector @ vector)
        return vector / np.float32(length) if length > 0 else vector

    def encode_all(self, lists: Sequence[Sequence[str]]) -> list[Vec]:
        """Return the vector of each list of tokens."""
        return [self.encode(tokens) for tokens in lists]

    def spans(self, tokens: Sequence[str], spans: tuple[slice, ...]) -> list[Vec]:
        """Return the unit vector of each span of a list of tokens."""
        return [self.encode(tokens[span]) for span in spans]


_WEIGHT = {1: 0.5, 2: 1.0, 3: 0.8}
"""What runs of each length weigh: a pair is most often a word, a single character half of many."""


@lru_cache(maxsize=1)
def characters() -> CharacterRuns:
    """Return this process's vectors for Chinese."""
    return CharacterRuns()
