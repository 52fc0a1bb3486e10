"""echo-env: a Gymnasium environment for empathetic conversation.

Importing it registers `echo/Companion-v0` and `echo/Strategy-v0` with Gymnasium and loads nothing else.
"""

import gymnasium

from echo_env.version import VERSION as __version__

gymnasium.register(
    id="echo/Companion-v0",
    entry_point="echo_env.env:CompanionEnv",
    vector_entry_point="echo_env.vector:companion",
)
gymnasium.register(
    id="echo/Strategy-v0",
    entry_point="echo_env.strategy:StrategyEnv",
    vector_entry_point="echo_env.vector:strategy",
)

__all__ = ["__version__"]
