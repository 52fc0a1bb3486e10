"""The data set as OpenRLHF reads it: a line for each group, `input` and `label`.

The label says what is talked about; the agent file makes the prompt's ids from it, with OpenRLHF's tokenizer.
`input` is there to be read, and is the key of OpenRLHF's evaluation, so it is unique. A row's samples are siblings:
they share the label, and with it scenario and seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal

from echo_env.agents.scoring import ScorablePrompt
from echo_env.agents.service.labels import label_of
from echo_env.errors import ConfigError, EchoError
from echo_env.profiles import Scenario, get_scenario
from echo_env.trainers.outcomes import Task
from echo_env.types import Record


class Spec(Record):
    """The label of a conversation: whom with, and which."""

    echo_env: Literal[1] = 1
    """Version of this shape."""
    scenario: str
    """By id."""
    digest: str
    """Of the scenario, to be sure that the other machine has the same."""
    seed: int
    """Of the world."""
    group: str
    """Key of the siblings."""

    def known(self) -> Scenario:
        """Return the scenario.

        Raises:
            ConfigError: This machine has another under its name, or none.
        """
        found = get_scenario(self.scenario)
        if found.digest != self.digest:
            raise ConfigError(
                f"scenario '{self.scenario}' is not here what it was where the data set was written",
                "install the same version of echo-env on all machines",
            )
        return found


class Row(Record):
    """A line of the data set."""

    input: str
    label: str
    datasource: str
    """Under which name evaluation reports it."""


def row_of(task: Task, datasource: str) -> Row:
    """Return the row of a group.

    Args:
        task: Any of its tasks.
        datasource: Name of what it belongs to.

    Raises:
        ConfigError: Its scenario is a file, which another machine does not have.
    """
    if task.scenario is not None:
        spec = Spec(scenario=task.scenario.id, digest=task.scenario.digest, seed=task.seed, group=task.group)
        try:
            spec.known()
        except EchoError:
            raise ConfigError(
                f"scenario '{task.scenario.id}' is a file of this machine; OpenRLHF's know scenarios by name",
                "use scenarios of a split",
            ) from None
        return Row(input=f"{task.group} (seed {task.seed})", label=spec.model_dump_json(), datasource=datasource)
    assert task.prompt is not None
    return Row(input=f"{task.group}: {_text(task.prompt)}", label=label_of(task.prompt), datasource=datasource)


def _text(prompt: ScorablePrompt) -> str:
    said = [text for e in prompt.history for text in (e.user, e.reply)]
    return "\n".join((*said, prompt.user))


def jsonl(rows: Iterable[Row]) -> str:
    """Return rows as lines of JSON."""
    return "".join(json.dumps(row.model_dump(), ensure_ascii=False) + "\n" for row in rows)


def rows_of(tasks: Sequence[Task], datasource: str) -> list[Row]:
    """Return the rows of some tasks, one for each group, in order."""
    return [row_of(task, datasource) for task in {task.group: task for task in tasks}.values()]
