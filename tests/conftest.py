"""What holds for all tests."""

from hypothesis import settings

# A busy machine is no failure: how long an example takes says nothing here.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
