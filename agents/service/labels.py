"""What a scored prompt looks like on the wire, and in the label of an OpenRLHF data row.

OpenRLHF 0.11.2 hands a row's label to a reward untouched. Ours says where in which conversation the reply was given:

    {"echo_env": 1, "scenario": "health-04", "history": [{"user": "...", "reply": "..."}], "user": "..."}

A data set writes it with `label_of`; the service reads it with `prompt_of` and takes the reply from the query.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from echo_env.agents.scoring import ScorablePrompt
from echo_env.errors import ConfigError
from echo_env.roles import Exchange
from echo_env.types import Record, Text, storable

ENDS = (
    "<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>", "<|end|>",
    "<|return|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[EOS]",
)  # fmt: skip
"""What a model ends its turn with. OpenRLHF decodes with special tokens, so that a query holds it."""


class ExchangeRecord(Record):
    """One finished exchange."""

    user: Text
    reply: Text
    """As the user saw it, thinking removed."""


class PromptRecord(Record):
    """A point in a conversation at which replies are scored."""

    scenario: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)] | None = None
    """Whose profile the judges see: an id, never a file; None for somebody who is known by their words alone."""
    history: tuple[ExchangeRecord, ...] = ()
    """Finished exchanges before the newest message, oldest first."""
    user: Annotated[str, Field(min_length=1), AfterValidator(storable)]
    """The user's newest message."""
    reference: Text | None = None
    """A reply to compare with; else the recipe's reference policy gives one."""
    language: Literal["en", "zh"] = "en"
    """Of a prompt without a scenario."""
    domain: Literal["", "chitchat"] = ""
    """Of a prompt without a scenario: "chitchat" gets the humanlike reward alone (Echo-N1 section 2.4)."""

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """Every text with the place where it stands."""
        turns = enumerate(self.history)
        spoken = (pair for k, e in turns for pair in ((f"history.{k}.user", e.user), (f"history.{k}.reply", e.reply)))
        return (*spoken, ("user", self.user), ("reference", self.reference or ""))

    def scorable(self) -> ScorablePrompt:
        """Return what `scoring.score_replies` takes."""
        return ScorablePrompt(
            user=self.user,
            history=tuple(Exchange(e.user, e.reply) for e in self.history),
            scenario=self.scenario,
            language=self.language,
            domain=self.domain,
            reference=self.reference,
        )


class Label(PromptRecord):
    """The label of a data row."""

    echo_env: Literal[1]
    """Version of this shape."""


def label_of(prompt: ScorablePrompt) -> str:
    """Return the label of a prompt, as one line of JSON; `prompt_of` reads it back unchanged.

    Raises:
        ValidationError: The prompt has no label: its scenario is a file, for example.
    """
    label = Label.model_validate(
        {
            "echo_env": 1,
            "scenario": prompt.scenario,
            "history": [{"user": e.user, "reply": e.reply} for e in prompt.history],
            "user": prompt.user,
            "reference": prompt.reference,
            "language": prompt.language,
            "domain": prompt.domain,
        }
    )
    return label.model_dump_json(exclude_defaults=True)


def prompt_of(label: str) -> Label:
    """Read a label.

    Raises:
        ConfigError: It is none; the message names the field.
    """
    try:
        return Label.model_validate_json(label)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:80] for part in first["loc"])
        raise ConfigError(
            f"no label of echo-env: {where + ': ' if where else ''}{first['msg']}"[:300],
            "write labels with echo_env.agents.service.labels.label_of",
        ) from None


def reply_in(query: str, prompt: str, ends: tuple[str, ...] = ENDS) -> str:
    """Return what the policy said: the query without its prompt and without what ends a turn.

    Args:
        query: Prompt and reply, as OpenRLHF decodes them, special tokens included.
        prompt: The prompt, as OpenRLHF rendered it.
        ends: What a model may end its turn with.

    Raises:
        ConfigError: The query does not begin with the prompt, so that nobody can tell where the reply begins.
    """
    if not query.startswith(prompt):
        raise ConfigError(
            "the query does not begin with its prompt",
            "the prompt was cut (raise --data.max_len), or this tokenizer does not give a text back as it was",
        )
    reply, cut = query[len(prompt) :], True
    while cut:
        reply, cut = reply.rstrip(), False
        for end in ends:
            if end and reply.endswith(end):
                reply, cut = reply.removesuffix(end), True
    return reply
