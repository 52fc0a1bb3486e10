"""The model that plays a role: its name in ids, and what a role asks of it where the models file says nothing."""

from __future__ import annotations

from typing import Literal, TypeVar

from echo_env.agents.llm.config import ModelConfig

T = TypeVar("T", int, float)


def short_name(model: ModelConfig) -> str:
    """Return a model's name without where it is served or stored."""
    return model.model.rstrip("/").rsplit("/", 1)[-1]


def unless_set(model: ModelConfig, setting: Literal["temperature", "max_tokens"], value: T) -> T | None:
    """Return what a role wants of a setting, or None where the user has set it."""
    return None if setting in model.model_fields_set else value
