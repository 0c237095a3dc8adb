"""Settings of the whole test suite."""

from hypothesis import settings

# No test asserts a wall-clock time: a busy machine is not a defect.
settings.register_profile("fedveil", deadline=None)
settings.load_profile("fedveil")
