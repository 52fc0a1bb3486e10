"""Rating a new person's deficit: nine items, level 0 to 3, each with a reason from the text (EMPA's IEDR).

What comes back fits a scenario's field `iedr`; the deficit P0 follows from it by `profiles.iedr_deficit`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from echo_env.agents.llm.client import LlmClient
from echo_env.agents.llm.forms import at_most, fill
from echo_env.agents.llm.prompting import prompt
from echo_env.errors import ConfigError
from echo_env.profiles import Rating, iedr_deficit

LONGEST = 12_000
"""Characters of a text that are read."""


class Rated(BaseModel):
    """One item as the model rates it."""

    reason: Annotated[
        str, at_most(300), Field(min_length=1, max_length=300, description="One sentence, from the text.")
    ]
    level: Literal[0, 1, 2, 3]


class Ratings(BaseModel):
    """The nine items."""

    c1: Annotated[Rated, Field(alias="C.1")]
    c2: Annotated[Rated, Field(alias="C.2")]
    c3: Annotated[Rated, Field(alias="C.3")]
    a1: Annotated[Rated, Field(alias="A.1")]
    a2: Annotated[Rated, Field(alias="A.2")]
    a3: Annotated[Rated, Field(alias="A.3")]
    p1: Annotated[Rated, Field(alias="P.1")]
    p2: Annotated[Rated, Field(alias="P.2")]
    p3: Annotated[Rated, Field(alias="P.3")]

    def items(self) -> dict[str, Rating]:
        """Return them as a scenario holds them."""
        rated = {info.alias or name: getattr(self, name) for name, info in type(self).model_fields.items()}
        return {item: Rating(level=one.level, reason=one.reason) for item, one in rated.items()}


async def rate(client: LlmClient, text: str, language: str) -> dict[str, Rating]:
    """Rate the person that a text tells of.

    Args:
        client: Whom to ask; the role is `iedr`.
        text: Persona and story, in any form.
        language: "en" or "zh"; of the prompt and the reasons.

    Returns:
        A rating for each of `profiles.IEDR_ITEMS`, in their order.

    Raises:
        LlmFailure: There is no usable rating.
        ConfigError: The text is empty, or there is no prompt in the language.
    """
    if not text.strip():
        raise ConfigError("there is nothing to rate: the text is empty")
    if language not in ("en", "zh"):
        raise ConfigError(f"there is no prompt in the language '{language}'", "en or zh")
    written = prompt("iedr", language)
    messages = written.render(text=text[:LONGEST])
    filled = await fill(client, "iedr", written.key, messages, Ratings, check=_no_deficit, max_tokens=1024)
    return filled.form.items()


def _no_deficit(ratings: Ratings) -> str:
    """Say so where the ratings leave nothing to heal: such a person has no place in a scenario."""
    deficit = iedr_deficit({item: one.level for item, one in ratings.items().items()})
    return "" if min(deficit) < -1 else "no axis is below -1: nothing would be left to heal; rate what the person lacks"
