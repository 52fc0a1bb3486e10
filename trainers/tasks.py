"""What each update talks about: scenarios or prompts, shuffled by the seed, and the groups drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from random import Random

from echo_env.agents.scoring import ScorablePrompt
from echo_env.build import conversation_seed, recipe_of
from echo_env.errors import ConfigError
from echo_env.profiles import Scenario, get_scenario, scenario_ids
from echo_env.rewards import JudgedRecipe
from echo_env.trainers.job import NEVER_TRAINED, Job
from echo_env.trainers.outcomes import Task

Subject = tuple[str, Scenario | ScorablePrompt]
"""A key, and what it stands for."""


class Order:
    """Goes through subjects again and again, each time in another order that the seed alone decides.

    Args:
        subjects: With keys that are unique.
        seed: Of the orders, and of the conversations.
    """

    position: int
    """Subjects handed out so far. Setting it is all that it takes to go on where another one stopped."""

    def __init__(self, subjects: Sequence[Subject], seed: int) -> None:
        self.position, self.subjects, self._seed = 0, list(subjects), seed

    def take(self, groups: int, siblings: int) -> list[Task]:
        """Return the tasks of the next groups, siblings together."""
        tasks = []
        for place in range(self.position, self.position + groups):
            key, what = self._at(place)
            scenario, prompt = (what, None) if isinstance(what, Scenario) else (None, what)
            seed = conversation_seed(self._seed, key, place)
            group = f"{key}@{place}"
            tasks += [Task(group, seed, scenario, prompt, number) for number in range(siblings)]
        self.position += groups
        return tasks

    @property
    def digest(self) -> str:
        """Short hash of the subjects: what an order that goes on where another stopped must share with it."""
        told = repr([(key, what.digest if isinstance(what, Scenario) else what) for key, what in self.subjects])
        return blake2b(told.encode(), digest_size=8).hexdigest()

    def _at(self, place: int) -> Subject:
        lap, index = divmod(place, len(self.subjects))
        order = list(range(len(self.subjects)))
        Random(f"{self._seed}/{lap}").shuffle(order)
        return self.subjects[order[index]]


def subjects(job: Job) -> list[Subject]:
    """Return what a job trains on.

    Raises:
        ConfigError: Something of it is for measuring, or there is nothing.
    """
    found = _scenarios(job) if job.mode.name == "multiturn" else _prompts(job)
    if not found:
        raise ConfigError("there is nothing to train on", "see data.split, data.scenarios and data.prompts")
    return found


def _scenarios(job: Job) -> list[Subject]:
    scenarios = [get_scenario(name) for name in job.data.scenarios or scenario_ids(job.data.split)]
    for scenario in scenarios:
        _refuse_measured(scenario, job)
    return [(scenario.id, scenario) for scenario in scenarios]


def _refuse_measured(scenario: Scenario, job: Job) -> None:
    """Refuse somebody who measures, a copy under another name included."""
    split: str = scenario.split
    if split not in {*NEVER_TRAINED, job.monitor.eval_split}:
        split = _who_measure(job.monitor.eval_split).get(_person(scenario), "")
    if split:
        raise ConfigError(f"{scenario.id} is of '{split}', which measures and is never trained on")


def _person(scenario: Scenario) -> str:
    """Return who a scenario is about, whatever it is called."""
    return scenario.model_dump_json(by_alias=True, exclude={"id", "split"})


@cache
def _who_measure(eval_split: str) -> dict[str, str]:
    """Return all people who measure -> their split."""
    splits = sorted({*NEVER_TRAINED, eval_split})
    return {_person(get_scenario(name)): split for split in splits for name in scenario_ids(split)}


def _prompts(job: Job) -> list[Subject]:
    from echo_env.trainers.promptdata import Draw, default_prompts, load_prompts

    if job.data.prompts:
        found = load_prompts(job.data.prompts)
    else:  # a recipe that is made of EPM has nothing to say about chit-chat
        judged = isinstance(recipe_of(job.world), JudgedRecipe)
        found = default_prompts(seed=job.seed, chitchat=Draw().chitchat if judged else 0)
    for prompt in found:
        if prompt.scenario:
            _refuse_measured(get_scenario(prompt.scenario), job)
    return [(prompt.id, prompt.scorable()) for prompt in found]
